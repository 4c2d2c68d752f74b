// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/restart"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/transport/unix"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// newProcess makes the test's process one that hands over on a signal that nobody sends.
func newProcess(t *testing.T) *restart.Process {
	t.Helper()
	p, err := restart.New(&restart.Options{Signal: syscall.SIGUSR2, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	return p
}

func TestTransportKeepsTheRules(t *testing.T) {
	yodeltest.TestTransport(t, newProcess(t).Transport(yodel.TCP), "127.0.0.1:0")
	folder, err := os.MkdirTemp("", "yodel") //nolint:usetesting // a unix socket's path must be short
	must(t, err)
	defer os.RemoveAll(folder)
	yodeltest.TestTransport(t, newProcess(t).Transport(unix.Transport{}), filepath.Join(folder, "socket"))
}

func TestNewRefuses(t *testing.T) {
	wantText(t, "a program that does not exist", func() error {
		_, err := restart.New(&restart.Options{Command: []string{"/nowhere/at/all"}})
		return err
	}(), "/nowhere/at/all")
	t.Setenv("YODEL_RESTART", "nonsense")
	_, err := restart.New(nil)
	wantText(t, "an inheritance that it does not understand", err, "nonsense")
	if got, there := os.LookupEnv("YODEL_RESTART"); there {
		t.Errorf("the variable is there still: %q", got)
	}
}

func TestListenRefuses(t *testing.T) {
	p := newProcess(t)
	_, err := p.Transport(mem.New()).Listen("pricing")
	wantText(t, "what is no socket", err, "cannot be handed over")
	_, err = p.Transport(yodel.TCP).Listen("nonsense")
	wantText(t, "a broken address", err, "nonsense")
	wantText(t, "nothing to hand over", p.Run(t.Context()), "nothing to hand over")
	l, err := p.Transport(yodel.TCP).Listen("127.0.0.1:0")
	must(t, err)
	failed := errors.New("enough")
	if err := p.Run(t.Context(), func(context.Context) error {
		_, err := p.Transport(yodel.TCP).Listen("127.0.0.1:0")
		wantText(t, "a listener that comes late", err, "before Run")
		return failed
	}); !errors.Is(err, failed) {
		t.Errorf("Run returned %v, want what the function did", err)
	}
	wantText(t, "a second time", p.Run(t.Context()), "before")
	must(t, l.Close())
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closing twice returned %v", err)
	}
}

// When one function has returned, or the context ends, all have to.
func TestRunEndsAllTogether(t *testing.T) {
	p := newProcess(t)
	one, err := p.Transport(yodel.TCP).Listen("127.0.0.1:0")
	must(t, err)
	two, err := p.Transport(yodel.TCP).Listen("127.0.0.1:0")
	must(t, err)
	failed := errors.New("enough")
	s := yodel.NewServer(nil)
	err = p.Run(t.Context(),
		func(ctx context.Context) error { return s.Serve(ctx, one) },
		func(ctx context.Context) error { return yodel.NewServer(nil).Serve(ctx, two) },
		func(context.Context) error { return failed },
	)
	if !errors.Is(err, failed) {
		t.Errorf("Run returned %v, want %v", err, failed)
	}
	p = newProcess(t)
	l, err := p.Transport(yodel.TCP).Listen("127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	err = p.Run(ctx, func(ctx context.Context) error {
		cancel()
		return yodel.NewServer(nil).Serve(ctx, l)
	})
	if err != nil {
		t.Errorf("Run returned %v at the end of its context", err)
	}
}

func wantText(t *testing.T, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: got error %v, want one with %q", what, err, text)
	}
}
