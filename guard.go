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

	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/text"
)

// This file protects the framework from user code that panics or ends its goroutine: hooks,
// observers, codecs, learners, balancers, dials, callbacks. On a goroutine of the framework, a
// panic of such code must not end the process, and runtime.Goexit must not leak a slot, a token or
// a goroutine. There are two ways:
//
//   - Rarely called code, such as hooks of connections, runs on a goroutine of its own, and the
//     framework waits for it: see apart.
//   - Code that runs for each call runs on the goroutine of the call. Deferred functions release
//     everything the call holds and recover a panic.
//
// Code that runs on the goroutine of Client.Call, Do or Range may panic there, like the caller's
// own code. By then the call has released everything it held.

// A guard runs user code for a client or a server, and logs panics and exits.
type guard struct {
	log    *slog.Logger
	panics atomic.Uint64 // counts panics and exits; errors and log lines name the count
}

// apart calls f on a new goroutine and waits until it returns. It returns the error of f, or an
// error that says that f panicked or ended its goroutine. The parameter what describes f in that
// error. If release, which may be nil, is closed first, apart returns errLetGo.
func (g *guard) apart(what string, release <-chan struct{}, f func() error) error {
	ended, err := isolate.Until(release, f, userCode{g, what}.failed)
	if !ended {
		return errLetGo
	}
	return err
}

// A userCode is a function that apart calls.
type userCode struct {
	guard *guard
	what  string
}

// failed returns the error of a function that panicked or ended its goroutine.
func (u userCode) failed(value any) error { return u.guard.note(background, u.what, value) }

// errLetGo is the error of apart when release is closed before the function returns.
var errLetGo = errors.New("it is not waited for any more")

// rescue recovers and logs a panic. Functions that call user code without a result defer it.
func (g *guard) rescue(what string) {
	if value := recover(); value != nil {
		_ = g.note(background, what, value) // note has logged it
	}
}

// tell calls the callback of an asynchronous call.
func (g *guard) tell(done ender, err error) {
	returned := false
	defer func() {
		if !returned { // recover takes time
			if value := recover(); value != nil {
				_ = g.note(background, "the callback of a call", value) // note has logged it
			}
		}
	}()
	done.ended(err)
	returned = true
}

// interrupted returns the error of a call that user code interrupted by a panic with value. If
// value is nil, user code ended the goroutine.
func (g *guard) interrupted(ctx context.Context, method string, value any) error {
	e := g.note(ctx, "code that a call passes", value, "method", method)
	e.Message = text.Line(method) + ": " + e.Message
	return e
}

// note logs a panic of user code with value, or the end of its goroutine if value is nil. It
// returns the error for the goroutines that wait for that code. The parameter what describes the
// code.
func (g *guard) note(ctx context.Context, what string, value any, attrs ...any) *Error {
	n := g.panics.Add(1)
	if value == nil {
		g.log.ErrorContext(ctx, "yodel: "+what+" ended its goroutine", append(attrs, "log id", n)...)
		return failure("YDL5004", "%s ended its goroutine (runtime.Goexit); it has number %d in the log of this process", what, n)
	}
	g.logPanic(ctx, "yodel: "+what+" panicked", n, value, attrs...)
	return failure("YDL5004", "%s panicked; it has number %d in the log of this process", what, n)
}

// logPanic logs a panic in one readable line, and the whole stack in a second line at level Debug.
// The function that has recovered the panic must call it.
func (g *guard) logPanic(ctx context.Context, msg string, n uint64, value any, attrs ...any) {
	attrs = append(attrs, "log id", n, "panic", described(value), "stack", panicFrames())
	g.log.ErrorContext(ctx, msg, attrs...)
	if g.log.Enabled(ctx, slog.LevelDebug) {
		g.log.DebugContext(ctx, "yodel: the stack of a panic", "log id", n, "stack", string(debug.Stack()))
	}
}

// described formats the value of a panic for the log. The value's own methods may panic too.
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

// panicFrames returns where the panic that is being recovered happened, as "file:line function":
// the function that panicked, and its callers outside of this framework and the runtime.
func panicFrames() string {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var said []string
	panicked := false // the frames before the panic belong to the recovery
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicked, said = true, nil // if a deferred function panicked too, the first panic counts
		case !panicked || strings.HasPrefix(f.Function, "runtime."):
		case len(said) == 0 || !ours(f.Function) && len(said) < maxFrames:
			said = append(said, fmt.Sprintf("%s:%d %s", path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)), f.Line, path.Base(f.Function)))
		}
		if !more {
			return strings.Join(said, ", ")
		}
	}
}

// ours reports whether a function belongs to the framework or to package reflect.
func ours(function string) bool {
	const root = "github.com/yodel-rpc/yodel"
	return strings.HasPrefix(function, root+".") || strings.HasPrefix(function, root+"/internal/") || strings.HasPrefix(function, "reflect.")
}

// hooks tracks the running hooks of connections, so that Close, when a hook calls it, does not wait
// for that hook.
type hooks struct {
	mu       sync.Mutex
	running  int
	released chan struct{} // closed by letGo
}

// run runs a hook and waits for it. If letGo is called meanwhile, run returns errLetGo.
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

// letGo makes run stop waiting for all running hooks, because one of these hooks may be waiting for
// the caller of letGo.
func (h *hooks) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running > 0 && h.released != nil {
		close(h.released)
		h.released = nil
	}
}

// A guardedHandler is a slog.Handler that cannot end the process or the goroutine that logs.
type guardedHandler struct{ slog.Handler }

// guarded returns log with a guardedHandler. Starting a goroutine per line is acceptable, because
// the framework logs rarely.
func guarded(log *slog.Logger) *slog.Logger { return slog.New(guardedHandler{log.Handler()}) }

// Handle implements slog.Handler.
func (h guardedHandler) Handle(ctx context.Context, r slog.Record) error {
	return isolate.Call(func() error { return h.Handler.Handle(ctx, r) }, unlogged)
}

// Enabled implements slog.Handler.
func (h guardedHandler) Enabled(ctx context.Context, level slog.Level) bool {
	enabled := true
	_ = isolate.Call(func() error { // it returns no error
		enabled = h.Handler.Enabled(ctx, level)
		return nil
	}, unlogged)
	return enabled
}

// unlogged ignores a panic of a slog.Handler, because a failure of the log cannot be logged.
func unlogged(any) error { return nil }

// WithAttrs implements slog.Handler.
func (h guardedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return guardedHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h guardedHandler) WithGroup(name string) slog.Handler {
	return guardedHandler{h.Handler.WithGroup(name)}
}

// A guardedRegistrar is a Registrar that cannot end the process or the announcing goroutine.
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
