// SPDX-License-Identifier: Apache-2.0

// Package h2http serves the requests of a connection of package h2 with an http.Handler, as package
// net/http serves those of HTTP/2: a handler that runs there runs here, with the same fields,
// bodies, trailers, deadlines and panics. A request is served on a goroutine of the connection.
package h2http

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/h2"
)

// A Handler is the h2.Handler of one connection.
type Handler struct {
	Handler http.Handler
	Context context.Context      //nolint:containedctx // parent of the contexts of the requests
	Remote  string               // Request.RemoteAddr
	TLS     *tls.ConnectionState // nil without TLS
	// Drain is called for a response with the header "Connection: close". It ends the connection
	// when its requests have ended.
	Drain func()
	// Panicked is called on the goroutine of a handler that has panicked, amid the panic.
	Panicked func(value any)

	today atomic.Pointer[day]
}

// A day is the value of the header Date in one second.
type day struct {
	second int64
	text   string
}

// date returns the value of the header Date.
func (h *Handler) date() string {
	now := time.Now()
	if d := h.today.Load(); d != nil && d.second == now.Unix() {
		return d.text
	}
	d := &day{now.Unix(), now.UTC().Format(http.TimeFormat)}
	h.today.Store(d)
	return d.text
}

// Head implements h2.Handler.
func (*Handler) Head(*h2.Stream) h2.Plan { return h2.Plan{} }

// A canceler is what Stream.OnFailure takes.
type canceler context.CancelFunc

func (c canceler) Cancel() { c() }

// protocolError and internalError are error codes (RFC 9113, section 7).
const (
	protocolError = 1
	internalError = 2
)

// Serve implements h2.Handler.
func (h *Handler) Serve(s *h2.Stream) {
	ctx, cancel := context.WithCancel(h.Context)
	defer cancel()
	s.OnFailure(canceler(cancel))
	w := &response{of: h, stream: s, ctx: ctx, length: -1}
	r := h.request(w)
	if r == nil {
		s.Reset(protocolError)
		return
	}
	returned := false
	defer func() {
		_ = w.body.Close() // it never fails
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll() // as net/http
		}
		if returned {
			cancel()
			w.finish()
			return
		}
		value := recover() // nil if the handler has ended its goroutine
		defer s.Reset(internalError)
		if value != nil && value != http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
			h.Panicked(value)
		}
	}()
	h.Handler.ServeHTTP(w, r)
	returned = true
}
