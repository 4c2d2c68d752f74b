// SPDX-License-Identifier: Apache-2.0

// Package restart replaces a running process by a new one at the same address without failing a
// call. The process starts its successor and hands over the sockets that it listens on. It ends
// when the successor is ready and its own calls have ended. If the successor does not become ready,
// nothing changes.
//
//	process, err := restart.New(nil)                                   // first thing in main
//	listener, err := process.Transport(yodel.TCP).Listen(":8972")
//	err = process.Run(ctx, func(ctx context.Context) error { return server.Serve(ctx, listener) })
//
// A SIGHUP then makes the process start its program file again and hand over to it. For TLS, put
// the transport below TLS: tls.Transport{Over: process.Transport(yodel.TCP)}.
//
// The package needs Unix. On other systems New returns an error.
package restart

import (
	"log/slog"
	"os"
	"time"
)

// Options changes how a process hands over. The zero value hands over on SIGHUP.
type Options struct {
	// Signal makes the process start a successor. Default SIGHUP.
	Signal os.Signal
	// ReadyTimeout is how long a successor may take to become ready. After that it is ended.
	// Default 10 s.
	ReadyTimeout time.Duration
	// Command is the program and the arguments of the successor. Default: the program and the
	// arguments of this process. The program is then found at the path that it had when New was
	// called, through the same symbolic links.
	Command []string
	// Logger logs each step of a restart. Default slog.Default().
	Logger *slog.Logger
}

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Signal == nil {
		opts.Signal = hangUp
	}
	if opts.ReadyTimeout <= 0 {
		opts.ReadyTimeout = 10 * time.Second
	}
	return opts
}
