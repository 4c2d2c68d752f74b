// SPDX-License-Identifier: Apache-2.0

package isolate

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/yodel-rpc/yodel/internal/panics"
)

// Context returns a context with the values and the end of ctx, whose methods neither panic nor end
// the goroutine. It is for code that holds something, and for goroutines of the framework. It
// returns ctx itself if ctx is made only of contexts of package context and of this framework.
func Context(ctx context.Context) context.Context {
	if trusted(ctx) {
		return ctx
	}
	x := &foreign{ctx: ctx}
	if x.err = x.isolated(func() { x.done = ctx.Done() }); x.err != nil {
		x.done = closed
	}
	return x
}

// A trustee is a context of this framework. It wraps no other context.
type trustee interface{ Trusted() }

// trusted reports whether no method of ctx runs user code.
func trusted(ctx context.Context) bool { //nolint:contextcheck // it makes no context
	for {
		if _, ours := ctx.(trustee); ours {
			return true
		}
		v := reflect.Indirect(reflect.ValueOf(ctx))
		if v.Type().PkgPath() != "context" {
			return false
		}
		for v.Kind() == reflect.Struct && v.NumField() > 0 {
			v = v.Field(0) // the context around which v is, or a struct with that context
		}
		if v.Kind() != reflect.Interface {
			return true // context.Background
		}
		if !v.CanInterface() {
			return false // of context.WithoutCancel
		}
		ctx = v.Interface().(context.Context) //nolint:forcetypeassert,fatcontext // package context embeds nothing else; this goes outwards
	}
}

// closed is a closed channel.
var closed = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// A foreign is a context with code of the user.
type foreign struct {
	ctx  context.Context //nolint:containedctx // it is one
	done <-chan struct{}
	err  error // of a Done that panicked or ended its goroutine
}

// isolated calls f on a goroutine of its own, and returns an error if it panics or ends that
// goroutine. The error may reach the other side, so the value of the panic is not in it.
func (x *foreign) isolated(f func()) error {
	return Call(func() error { f(); return nil }, func(value any) error {
		if value == nil {
			return fmt.Errorf("the %T of the call ended its goroutine: %w", x.ctx, context.Canceled)
		}
		_, frames := panics.Describe(value)
		return fmt.Errorf("the %T of the call panicked at %s: %w", x.ctx, frames, context.Canceled)
	})
}

func (x *foreign) Done() <-chan struct{} { return x.done }

func (x *foreign) Err() (err error) {
	select {
	case <-x.done:
	default:
		return nil
	}
	if x.err != nil {
		return x.err
	}
	failed := x.isolated(func() { err = Tried(x.ctx.Err()) })
	return cmp.Or(failed, err, context.Canceled)
}

func (x *foreign) Deadline() (at time.Time, ok bool) {
	_ = x.isolated(func() { at, ok = x.ctx.Deadline() }) // without one, the call goes on
	return at, ok
}

func (x *foreign) Value(key any) (value any) {
	_ = x.isolated(func() { value = x.ctx.Value(key) }) // without the value, the call goes on
	return value
}
