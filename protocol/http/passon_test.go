// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	std "net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// knowAli is a check function that knows one token.
func knowAli(ctx context.Context, _, token string) (context.Context, error) {
	if token != "sesame" {
		return nil, errors.New("no")
	}
	return auth.WithIdentity(ctx, &auth.Identity{Subject: "Ali"}), nil
}

// whoIs is a handler that tells who calls it.
func whoIs(w std.ResponseWriter, r *std.Request) {
	body, _ := io.ReadAll(r.Body)
	id, call := auth.IdentityFrom(r.Context()), yodel.CallFrom(r.Context())
	if r.Context().Value(std.LocalAddrContextKey) == nil {
		panic("the context lacks the values of net/http")
	}
	_, _ = io.WriteString(w, id.Subject+" "+call.Method+" "+string(body))
}

// The server's authentication decides about the requests for a handler of the program too, and the
// handler gets the identity.
func TestHandlersAreBehindTheMiddleware(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		var seen atomic.Int32
		mux, log := std.NewServeMux(), new(book)
		mux.HandleFunc("/who", whoIs)
		mux.HandleFunc("/other.Service/Method", whoIs)
		mux.HandleFunc("/panic", func(std.ResponseWriter, *std.Request) { panic("oh no") })
		mux.HandleFunc("/abort", func(w std.ResponseWriter, r *std.Request) { panic(std.ErrAbortHandler) })
		s := newSite(t, &http.Options{Handler: mux, HandlerMethod: "web.Pages", Logger: slog.New(slog.NewTextHandler(log, nil))}, yodel.ServerOptions{
			Middleware: []yodel.Middleware{
				auth.Check(knowAli), validate.Messages(),
				func(next yodel.Handler) yodel.Handler {
					return func(ctx context.Context, call *yodel.Call) error {
						if call.Method == "web.Pages" {
							seen.Add(1)
							call.SetHeader(yodel.Metadata{"seen": "yes"})
						}
						return next(ctx, call)
					}
				},
			},
		})
		c, token := client(t, h2), []string{"Authorization", "Bearer sesame", "Idempotency-Key", "1"}
		for range 2 {
			r := s.do(c, "PUT", "/who", "body", token...)
			if r.is(t, 200, "Ali web.Pages body"); r.Header.Get("Seen") != "yes" {
				t.Errorf("the header of middleware is lost: %v", r.Header)
			}
		}
		s.post(c, "/other.Service/Method", "{}", token...).is(t, 200, "Ali web.Pages {}")
		s.post(c, "/Test/Echo", `{"text":"x"}`, token...).is(t, 200, `{"text":"x"}`)
		s.do(c, "GET", "/none", "", token...).is(t, 404, "404 page not found")
		if n := seen.Load(); n != 4 {
			t.Errorf("middleware has seen %d requests for the handler", n)
		}
		r := s.do(c, "GET", "/who", "")
		if r.fails(t, 401, yodel.Unauthenticated, "web.Pages: the call has no token"); r.Header.Get("Yodel-Error-Id") != "YDL3101" {
			t.Errorf("the headers are %v", r.Header)
		}
		s.do(c, "GET", "/who", "", "Authorization", "Bearer x").fails(t, 403, yodel.PermissionDenied, "not accepted")
		s.post(c, "/other.Service/Method", "{}").fails(t, 401, yodel.Unauthenticated, "")
		if r := s.do(c, "POST", "/other.Service/Method", string(envelope(0, "{}")), "Content-Type", "application/connect+json"); r.StatusCode != std.StatusOK || !strings.Contains(r.body, `"unauthenticated"`) {
			t.Errorf("Connect: got %d %q", r.StatusCode, r.body)
		}
		if r := s.do(c, "POST", "/other.Service/Method", string(envelope(0, "{}")), "Content-Type", "application/grpc+json"); h2 && r.Header.Get("Grpc-Status")+r.Trailer.Get("Grpc-Status") != "16" {
			t.Errorf("gRPC: got %v %v", r.Header, r.Trailer)
		}
		for _, path := range []string{"/panic", "/abort"} {
			response, err := s.try(t.Context(), c, "GET", path, nil, token...)
			if err == nil {
				response.Body.Close()
				t.Errorf("%s: got %s", path, response.Status)
			}
		}
		eventually(t, "the panic is logged", func() bool { return strings.Contains(log.String(), "oh no") })
		if lines := log.String(); strings.Contains(lines, "abort") || !strings.Contains(lines, "passon_test.go") {
			t.Errorf("the log has %s", lines)
		}
	})
}

// Limits of the server count the requests for a handler, and their contexts end with the request.
func TestHandlersAreWithinTheLimits(t *testing.T) {
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	hold := std.HandlerFunc(func(_ std.ResponseWriter, r *std.Request) {
		began <- struct{}{}
		<-r.Context().Done()
		ended <- r.Context().Err()
	})
	s := newSite(t, &http.Options{Handler: hold, HandlerMethod: "web.Pages"}, yodel.ServerOptions{
		Middleware: []yodel.Middleware{limit.With(&limit.Options{Limit: 1, Queue: -1})},
	})
	c := client(t, true)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan struct{})
	go func() {
		defer close(left)
		if r, err := s.try(ctx, c, "GET", "/", nil); err == nil {
			r.Body.Close()
		}
	}()
	receive(t, began)
	s.do(c, "GET", "/", "").fails(t, 429, yodel.ResourceExhausted, "web.Pages")
	leave()
	if err := receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the context ends with %v", err)
	}
	receive(t, left)
}

// What middleware must not do with a request for a handler becomes an error.
func TestHandlersAnswerOnce(t *testing.T) {
	handler := std.HandlerFunc(func(w std.ResponseWriter, _ *std.Request) {
		_, _ = io.WriteString(w, "once")
	})
	var harm func(next yodel.Handler, ctx context.Context, call *yodel.Call) error
	s := newSite(t, &http.Options{Handler: handler, HandlerMethod: "web.Pages"}, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error { return harm(next, ctx, call) }
	}}})
	c := client(t, false)
	harm = func(yodel.Handler, context.Context, *yodel.Call) error { return nil }
	s.do(c, "GET", "/", "").fails(t, 500, yodel.Internal, "only its handler can")
	var second error
	harm = func(next yodel.Handler, ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		second = next(ctx, call)
		return err
	}
	s.do(c, "GET", "/", "").is(t, 200, "once")
	if yodel.CodeOf(second) != yodel.Internal {
		t.Errorf("the second call of the handler: got %v", second)
	}
}
