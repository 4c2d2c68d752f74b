// SPDX-License-Identifier: Apache-2.0

// Package restart replaces a running process by a new one at the same address, and no call fails:
// the process starts its successor, hands over the sockets that it listens on, and ends when the
// successor is ready and its own calls have ended. A successor that does not become ready changes
// nothing.
//
//	process, err := restart.New(nil)                                   // first thing in main
//	listener, err := process.Transport(yodel.TCP).Listen(":8972")
//	err = process.Run(ctx, func(ctx context.Context) error { return server.Serve(ctx, listener) })
//
// From then on, a SIGHUP makes the process hand over to what its program file holds by then. For
// TLS, the transport goes below it: tls.Transport{Over: process.Transport(yodel.TCP)}.
//
// It needs Unix: elsewhere New returns an error.
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
	// ReadyTimeout is how long a successor may take until it is ready. It is ended then. Default 10
	// s.
	ReadyTimeout time.Duration
	// Command is the successor's program and its arguments. Default: those of this process, the
	// program being looked for where it was when New was called, through the same symbolic links.
	Command []string
	// Logger is told how it goes. Default slog.Default().
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
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return opts
}
