// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/guard"
)

// A callback is the end of an asynchronous call.
type callback func()

func (f callback) Ended(error) { f() }

// An unprintable value panics when it is formatted, with another such value.
type unprintable struct{}

func (unprintable) String() string { panic(unprintable{}) }

func newGuard(level slog.Level) (*guard.Guard, *bytes.Buffer) {
	log := new(bytes.Buffer)
	handler := slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})
	return guard.New(slog.New(handler), errors.New), log
}

// interrupt calls f like user code on the goroutine of a call, which f may end.
func interrupt(g *guard.Guard, f func()) error {
	return run(g, func() error {
		f()
		return nil
	})
}

// run calls f with Guard.Run, on a goroutine that f may end.
func run(g *guard.Guard, f func() error) error {
	failed := make(chan error, 1)
	go g.Run(context.Background(), "Arith.Mul", f, func(err error) { failed <- err })
	return <-failed
}

// here calls f with Guard.Here, on a goroutine that f may end.
func here(g *guard.Guard, exits bool, f func() error) error {
	failed := make(chan error, 1)
	go g.Here("a hook", f, func() bool { return exits }, func(err error) { failed <- err })
	return <-failed
}

func TestErrorsArePassedOn(t *testing.T) {
	g, log := newGuard(slog.LevelInfo)
	want := errors.New("an error")
	for _, test := range []struct {
		f    func() error
		want error
	}{
		{func() error { return nil }, nil},
		{func() error { return want }, want},
		{func() error { runtime.Goexit(); return want }, nil},
	} {
		if err := here(g, true, test.f); !errors.Is(err, test.want) {
			t.Errorf("got %v, want %v", err, test.want)
		}
	}
	for _, want := range []error{nil, want} {
		if err := run(g, func() error { return want }); !errors.Is(err, want) {
			t.Errorf("a call: got %v, want %v", err, want)
		}
	}
	if log.String() != "" || g.Panics() != 0 {
		t.Errorf("the log has %s", log)
	}
}

func TestUserCodeBecomesAnErrorAndALogLine(t *testing.T) {
	for name, test := range map[string]struct {
		run       func(g *guard.Guard) error
		want, log string
	}{
		"apart, panics": {
			func(g *guard.Guard) error { return g.Apart("a hook", nil, func() error { panic("harm") }) },
			"a hook panicked; it has number 1 in the log of this process", `msg="yodel: a hook panicked" logID=1 panic=harm stack="guard/guard_test.go:`,
		},
		"apart, exits": {
			func(g *guard.Guard) error {
				return g.Apart("a hook", nil, func() error { runtime.Goexit(); return nil })
			},
			"a hook ended its goroutine (runtime.Goexit); it has number 1 in the log of this process", `msg="yodel: a hook ended its goroutine" logID=1`,
		},
		"here, panics": {
			func(g *guard.Guard) error { return here(g, true, func() error { panic("harm") }) },
			"a hook panicked; it has number 1 in the log of this process", `msg="yodel: a hook panicked" logID=1 panic=harm stack="guard/guard_test.go:`,
		},
		"here, exits": {
			func(g *guard.Guard) error { return here(g, false, func() error { runtime.Goexit(); return nil }) },
			"a hook ended its goroutine (runtime.Goexit); it has number 1 in the log of this process", `msg="yodel: a hook ended its goroutine" logID=1`,
		},
		"a call, panics": {
			func(g *guard.Guard) error { return interrupt(g, func() { panic(unprintable{}) }) },
			"Arith.Mul: code that a call passes panicked; it has number 1 in the log of this process", `method=Arith.Mul logID=1 panic="guard_test.unprintable, whose text cannot be had"`,
		},
		"a call, exits": {
			func(g *guard.Guard) error { return interrupt(g, runtime.Goexit) },
			"Arith.Mul: code that a call passes ended its goroutine (runtime.Goexit); it has number 1 in the log of this process", `method=Arith.Mul logID=1`,
		},
		"rescued": {
			func(g *guard.Guard) error { defer g.Rescue("an observer"); panic("harm") },
			"", `msg="yodel: an observer panicked" logID=1 panic=harm`,
		},
		"callback": {
			func(g *guard.Guard) error { g.Tell(callback(func() { panic("harm") }), nil); return nil },
			"", `msg="yodel: the callback of a call panicked" logID=1 panic=harm`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, log := newGuard(slog.LevelInfo)
			got := ""
			if err := test.run(g); err != nil {
				got = err.Error()
			}
			if got != test.want || !strings.Contains(log.String(), test.log) || strings.Count(log.String(), "\n") != 1 {
				t.Errorf("got %q and the log %s", got, log)
			}
			if g.Panics() != 1 {
				t.Errorf("counted %d, want 1", g.Panics())
			}
		})
	}
}

// A missing error is a nil pointer in an error, and panics in each method.
type missing struct{ text string }

func (e *missing) Error() string { return e.text }

// A harmfulError does harm in one method.
type harmfulError struct {
	at   string
	harm func()
}

func (e harmfulError) do(at string) {
	if e.at == at {
		e.harm()
	}
}

func (e harmfulError) Error() string { e.do("Error"); return "harm" }
func (e harmfulError) Unwrap() error { e.do("Unwrap"); return nil }
func (e harmfulError) Is(error) bool { e.do("Is"); return false }
func (e harmfulError) As(any) bool   { e.do("As"); return false }
func (e harmfulError) GRPCStatus() any {
	e.do("GRPCStatus")
	return nil
}

func TestMethodsOfErrorsAreUserCode(t *testing.T) {
	var none *missing
	all := map[string]error{"a nil pointer": none}
	for _, at := range []string{"Error", "Unwrap", "Is", "As", "GRPCStatus"} {
		all[at+" panics"] = harmfulError{at, func() { panic("harm") }}
		all[at+" exits"] = harmfulError{at, runtime.Goexit}
	}
	for name, bad := range all {
		g, _ := newGuard(slog.LevelInfo)
		err := g.Apart("a hook", nil, func() error { return bad })
		if err == nil || !strings.Contains(err.Error(), "a hook ") || g.Panics() != 1 {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestTheErrorOfUserCodeIsUnchanged(t *testing.T) {
	g, log := newGuard(slog.LevelDebug)
	want := errors.New("it fails")
	if err := g.Apart("a hook", nil, func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	ran := false
	g.Tell(callback(func() { ran = true }), nil)
	if !ran || log.Len() > 0 || g.Panics() != 0 {
		t.Errorf("the callback ran: %v; the log is %s", ran, log)
	}
}

func TestDebugLogsTheWholeStack(t *testing.T) {
	g, log := newGuard(slog.LevelDebug)
	g.Tell(callback(func() { panic("harm") }), nil)
	if lines := strings.Split(log.String(), "\n"); len(lines) != 3 || !strings.Contains(lines[1], "goroutine ") {
		t.Errorf("the log is %s", log)
	}
}

func TestReleaseEndsTheWaitForRunningHooks(t *testing.T) {
	var hooks guard.Hooks
	g, _ := newGuard(slog.LevelInfo)
	blocked, ended := make(chan struct{}), make(chan struct{})
	err := hooks.Run(g, "a hook", func() error {
		defer close(ended)
		hooks.Release()
		<-blocked
		return nil
	})
	if !errors.Is(err, guard.ErrReleased) {
		t.Errorf("got %v", err)
	}
	close(blocked)
	<-ended
	hooks.Release() // without a running hook it does nothing
	if err := hooks.Run(g, "a hook", func() error { return nil }); err != nil {
		t.Errorf("the hook after Release: %v", err)
	}
}

// A harmful handler ends the goroutine that logs.
type harmful struct{ slog.Handler }

func (harmful) Handle(context.Context, slog.Record) error { runtime.Goexit(); return nil }
func (harmful) Enabled(context.Context, slog.Level) bool  { panic("harm") }

func TestALoggerOutlivesItsHandler(t *testing.T) {
	log := guard.Logger(slog.New(harmful{slog.DiscardHandler})).With("a", 1).WithGroup("b")
	log.Info("a line")
	out := new(bytes.Buffer)
	log = guard.Logger(slog.New(slog.NewTextHandler(out, nil))).With("a", 1).WithGroup("b")
	log.Debug("left out")
	log.Info("a line", "c", 2)
	if !strings.HasSuffix(out.String(), "msg=\"a line\" a=1 b.c=2\n") {
		t.Errorf("got %s", out)
	}
}
