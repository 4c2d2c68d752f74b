// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
)

// This file is what stands between the framework and the code that users give it: hooks, observers,
// codecs, learners, balancers, dials, callbacks. On a goroutine of the framework such code must not
// end the process with a panic, and must not take a place, a token or a goroutine with it by
// runtime.Goexit. There are two ways:
//
//   - Rare code, hooks of connections for example, runs on a goroutine of its own, for which the
//     framework waits: apart.
//   - Code of each call runs where the call is. What the call holds is given back in deferred
//     functions, which run in either case, and a panic is recovered there.
//
// Code that runs on the goroutine of Client.Call, Do or Range may panic there, as the caller's own
// code: the call has then given back all that it held.

// A guard runs the code of the users of a client or a server, and reports what it does to it.
type guard struct {
	log    *slog.Logger
	panics atomic.Uint64 // and exits; errors and log lines have the number of theirs
}

// apart calls f on a goroutine of its own and waits until it returns. It returns the error of f, or
// one that says that f panicked or ended its goroutine. What names f. It returns errLetGo when
// release is closed first, which may be nil.
func (g *guard) apart(what string, release <-chan struct{}, f func() error) error {
	ended := make(chan error, 1)
	go func() {
		returned, err := false, error(nil)
		defer func() {
			if value := recover(); !returned {
				err = g.note(background, what, value)
			}
			ended <- err
		}()
		err = f()
		returned = true
	}()
	select {
	case err := <-ended:
		return err
	case <-release:
		return errLetGo
	}
}

// errLetGo is what apart returns when nobody waits for the function any more.
var errLetGo = errors.New("it is not waited for any more")

// rescue is to be deferred where user code runs that has nothing to say. It recovers a panic.
func (g *guard) rescue(what string) {
	if value := recover(); value != nil {
		_ = g.note(background, what, value) // it is logged
	}
}

// tell calls the callback of an asynchronous call.
func (g *guard) tell(done ender, err error) {
	returned := false
	defer func() {
		if !returned { // recover takes time
			if value := recover(); value != nil {
				_ = g.note(background, "the callback of a call", value) // it is logged
			}
		}
	}()
	done.ended(err)
	returned = true
}

// interrupted is the error of a call that user code has interrupted by a panic with value, or, if
// that is nil, by ending its goroutine.
func (g *guard) interrupted(ctx context.Context, method string, value any) error {
	e := g.note(ctx, "code that a call passes", value, "method", method)
	e.Message = text.Line(method) + ": " + e.Message
	return e
}

// note logs that user code panicked with value, or, if that is nil, ended its goroutine, and
// returns the error that this is to those who wait for it. What names the code.
func (g *guard) note(ctx context.Context, what string, value any, attrs ...any) *Error {
	n := g.panics.Add(1)
	if value == nil {
		g.log.ErrorContext(ctx, "yodel: "+what+" ended its goroutine", append(attrs, "log id", n)...)
		return failure("YDL5004", "%s ended its goroutine (runtime.Goexit); it has number %d in the log of this process", what, n)
	}
	g.logPanic(ctx, "yodel: "+what+" panicked", n, value, attrs...)
	return failure("YDL5004", "%s panicked; it has number %d in the log of this process", what, n)
}

// logPanic logs a panic in one line that people can read. It is called by the function that has
// recovered it. The whole stack is a line of its own at Debug.
func (g *guard) logPanic(ctx context.Context, msg string, n uint64, value any, attrs ...any) {
	attrs = append(attrs, "log id", n, "panic", described(value), "stack", panicFrames())
	g.log.ErrorContext(ctx, msg, attrs...)
	if g.log.Enabled(ctx, slog.LevelDebug) {
		g.log.DebugContext(ctx, "yodel: the stack of a panic", "log id", n, "stack", string(debug.Stack()))
	}
}

// described returns what the log says of the value of a panic, whose own methods may panic too.
func described(value any) (said string) {
	defer func() {
		if recover() != nil {
			said = fmt.Sprintf("%T, whose text cannot be had", value)
		}
	}()
	return fmt.Sprint(value)
}

// maxFrames is how many functions of a panic's stack the log names.
const maxFrames = 8

// panicFrames returns where the panic happened that is being recovered: the function that panicked,
// and those functions below it that are neither this framework's nor the runtime's, as "file:line
// function".
func panicFrames() string {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var said []string
	panicked := false // the frames above are those of the recovery
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicked, said = true, nil // of a panic in a deferred function the first one counts
		case !panicked || strings.HasPrefix(f.Function, "runtime."):
		case len(said) == 0 || !ours(f.Function) && len(said) < maxFrames:
			said = append(said, fmt.Sprintf("%s:%d %s", path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)), f.Line, path.Base(f.Function)))
		}
		if !more {
			return strings.Join(said, ", ")
		}
	}
}

// ours reports whether a function belongs to the framework or to what calls by reflection.
func ours(function string) bool {
	const root = "github.com/yodel-rpc/yodel"
	return strings.HasPrefix(function, root+".") || strings.HasPrefix(function, root+"/internal/") || strings.HasPrefix(function, "reflect.")
}

// hooks are the hooks of connections that run. What a hook closes does not wait for that hook.
type hooks struct {
	mu       sync.Mutex
	running  int
	released chan struct{} // closed when the hooks that run are not waited for any more
}

// run runs a hook and waits for it, unless the hooks are let go meanwhile: then it returns
// errLetGo.
func (h *hooks) run(g *guard, what string, f func() error) error {
	h.mu.Lock()
	h.running++
	if h.released == nil {
		h.released = make(chan struct{})
	}
	released := h.released
	h.mu.Unlock()
	return g.apart(what, released, func() error {
		defer h.ended()
		return f()
	})
}

func (h *hooks) ended() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
}

// letGo ends the waiting for the hooks that run now: one of them may be waiting for the caller.
func (h *hooks) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running > 0 && h.released != nil {
		close(h.released)
		h.released = nil
	}
}

// A guardedHandler is a log's handler that cannot end the process, nor a goroutine that logs.
type guardedHandler struct{ slog.Handler }

// guarded returns a logger whose handler can do no harm. Loggers are told of rare things only.
func guarded(log *slog.Logger) *slog.Logger { return slog.New(guardedHandler{log.Handler()}) }

// Handle implements slog.Handler.
func (h guardedHandler) Handle(ctx context.Context, r slog.Record) error {
	ended := make(chan error, 1)
	go func() {
		err := error(nil)
		defer func() {
			if recover() != nil { // there is nowhere to say so
				err = nil
			}
			ended <- err
		}()
		err = h.Handler.Handle(ctx, r)
	}()
	return <-ended
}

// Enabled implements slog.Handler.
func (h guardedHandler) Enabled(ctx context.Context, level slog.Level) bool {
	ended := make(chan bool, 1)
	go func() {
		enabled := true
		defer func() {
			_ = recover()
			ended <- enabled
		}()
		enabled = h.Handler.Enabled(ctx, level)
	}()
	return <-ended
}

// WithAttrs implements slog.Handler.
func (h guardedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return guardedHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h guardedHandler) WithGroup(name string) slog.Handler {
	return guardedHandler{h.Handler.WithGroup(name)}
}

// A guardedRegistrar is a Registrar that can do no harm to the goroutine that announces.
type guardedRegistrar struct {
	Registrar
	guard *guard
}

// Announce implements Registrar.
func (r guardedRegistrar) Announce(ctx context.Context, service string, in Instance, ttl time.Duration) error {
	return r.guard.apart("the Registrar's Announce", nil, func() error { return r.Registrar.Announce(ctx, service, in, ttl) })
}

// Withdraw implements Registrar.
func (r guardedRegistrar) Withdraw(ctx context.Context, service, addr string) error {
	return r.guard.apart("the Registrar's Withdraw", nil, func() error { return r.Registrar.Withdraw(ctx, service, addr) })
}
