// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"fmt"
	std "net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
)

// This file passes the requests that are no calls of a method to Options.Handler.

// passOn passes the request to Options.Handler if the server does not have the method. It reports
// whether it did. The call must have begun. Fail sends the error of a request that the middleware
// refuses.
func (x *exchange) passOn(fail func(e *yodel.Error)) bool {
	opts := &x.router.protocol.opts
	if opts.Handler == nil || x.v.Kind() != "" {
		return false
	}
	if opts.HandlerMethod == "" {
		x.finished, x.r.Body = true, x.body.ReadCloser
		opts.Handler.ServeHTTP(x.w, x.r) // without the chain of the server
		return true
	}
	x.end()
	e := x.beginMethod(opts.HandlerMethod, yodel.JSON)
	x.v.Call().IdempotencyKey = "" // a KeyMemory cannot repeat the response
	h := &passed{exchange: x, handler: opts.Handler, ended: make(chan struct{})}
	x.v.Instead = h.serve
	if e == nil {
		e = x.v.Admit(0, true)
	}
	if e == nil {
		e = x.run(false)
	}
	switch {
	case h.begun.Swap(true):
		if <-h.ended; h.panicked != nil { // middleware may have returned before
			panic(h.panicked)
		}
	case e == nil:
		fail(yodel.Errorf(yodel.Internal, "%s: middleware of the server has answered a request of HTTP, and only its handler can", opts.HandlerMethod))
	default:
		fail(e)
	}
	return true
}

// isForeign reports whether the request is for Options.Handler, because the server does not have
// the service that the path names.
func (c *router) isForeign(r *std.Request) bool {
	opts := &c.protocol.opts
	if opts.Handler == nil || opts.HandlerMethod != "" {
		return false
	}
	name := namedBy(r.URL)
	return !c.session.HasService(name[:max(strings.LastIndexAny(name, "./"), 0)])
}

// A passed is a request for Options.Handler in the chain of the server's middleware.
type passed struct {
	*exchange
	handler  std.Handler
	begun    atomic.Bool   // the handler was called, or must not be called any more
	ended    chan struct{} // closed when the handler does not use the response any more
	panicked any           // what to panic with on the goroutine of net/http
}

// serve calls the handler. It is the Instead of a Served.
func (h *passed) serve(ctx context.Context) error {
	if h.begun.Swap(true) {
		return yodel.Errorf(yodel.Internal, "%s: middleware of the server has called the handler of a request of HTTP twice or too late", h.name())
	}
	h.finished, h.r.Body = true, h.body.ReadCloser
	defer close(h.ended)
	h.setHeader("", h.v.Call().Header())
	err := yodel.Errorf(yodel.Internal, "%s: the handler of the request of HTTP panicked", h.name())
	h.panicked = std.ErrAbortHandler // if it ends its goroutine
	func() {
		defer h.recover()
		h.handler.ServeHTTP(h.w, h.r.WithContext(passedContext{ctx, h.r.Context()})) //nolint:contextcheck // it has both contexts
		h.panicked, err = nil, nil
	}()
	if err != nil {
		return err
	}
	return nil
}

// recover keeps a panic of the handler for net/http, which ends the connection or the stream, and
// logs the panic unless its value is http.ErrAbortHandler.
func (h *passed) recover() {
	switch value := recover(); value {
	case nil, std.ErrAbortHandler:
	default:
		h.panicked = fmt.Sprintf("%v\n%s", value, debug.Stack())
	}
}

// A passedContext is the context of a handler of the server, with the values of that of the
// request too.
type passedContext struct {
	context.Context //nolint:containedctx // it is one
	request         context.Context
}

// Value implements context.Context.
func (x passedContext) Value(key any) any {
	if value := x.Context.Value(key); value != nil {
		return value
	}
	return x.request.Value(key)
}
