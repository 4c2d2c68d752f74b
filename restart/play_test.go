// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/restart"
	"github.com/yodel-rpc/yodel/transport/unix"
)

// scriptVariable makes the test binary a server that does what the file of this name says, when it starts. What it
// does then, it says in lines on its standard output, which it shares with the other processes of its row.
const scriptVariable = "YODEL_RESTART_SCRIPT"

// A script is what a process does.
type script struct {
	Addrs        []string // a path is a unix socket
	Does         string   // nothing to serve as it should
	ReadyTimeout time.Duration
}

// A Job is a call with an id of its own.
type Job struct{ ID int64 }

// A Done is the answer to a Job, with the id of the process that has carried it out.
type Done struct {
	ID int64
	By int
}

const work yodel.Method[Job, Done] = "Restart.Work"

// say writes one line, in one piece.
func say(what string, rest ...any) {
	text := fmt.Sprintln(append([]any{os.Getpid(), what}, rest...)...)
	_, _ = os.Stdout.WriteString(text)
}

// sayer makes lines of what is logged.
type sayer struct{}

func (sayer) Write(b []byte) (int, error) {
	say("log", string(bytes.TrimSpace(b)))
	return len(b), nil
}

func play(name string) {
	err := playScript(name)
	say("down", err)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func playScript(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var s script
	if err = json.Unmarshal(text, &s); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	process, err := restart.New(&restart.Options{ReadyTimeout: s.ReadyTimeout, Logger: slog.New(slog.NewTextHandler(sayer{}, nil))})
	if err != nil {
		return err
	}
	switch s.Does {
	case "crash":
		os.Exit(3)
	case "hang":
		stop()
		fallthrough
	case "hang stubbornly":
		say("hangs")
		select {}
	}
	server := yodel.NewServer(nil)
	work.Handle(server, func(_ context.Context, job *Job) (*Done, error) {
		say("did", job.ID)
		<-time.After(time.Duration(job.ID%8) * time.Millisecond)
		return &Done{job.ID, os.Getpid()}, nil
	})
	var addrs []string
	var serve []func(context.Context) error
	for _, addr := range s.Addrs {
		over := yodel.TCP
		if strings.HasPrefix(addr, "/") {
			over = unix.Transport{}
		}
		l, err := process.Transport(over).Listen(addr)
		if err != nil {
			return err
		}
		addrs = append(addrs, l.Addr().String())
		serve = append(serve, func(ctx context.Context) error { return server.Serve(ctx, l) })
	}
	say("up", strings.Join(addrs, " "))
	return process.Run(ctx, serve...)
}
