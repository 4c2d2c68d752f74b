// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	std "net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// Middleware sees what OnRequest takes from the HTTP request, in every protocol over HTTP.
func TestMiddlewareSeesWhatOnRequestTakesFromTheRequest(t *testing.T) {
	var mu sync.Mutex // the calls of a batch run at the same time
	var seen []string
	options := &http.Options{
		JSONRPC: "/rpc", RPCX: true, Routes: []http.Route{{Pattern: "POST /see", Method: string(see)}},
		OnRequest: func(r *std.Request, call *yodel.Call) error {
			if call.Metadata == nil {
				call.Metadata = yodel.Metadata{}
			}
			call.Metadata["from-request"] = r.Method + " " + r.URL.Path + " " + call.Method
			return nil
		},
	}
	s := newSite(t, options, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			mu.Lock()
			seen = append(seen, call.Metadata["from-request"])
			mu.Unlock()
			return next(ctx, call)
		}
	}}})
	both(t, func(t *testing.T, h2 bool) {
		c := client(t, h2)
		const one = `{"jsonrpc":"2.0","id":1,"method":"Test.See","params":{}}`
		for name, test := range map[string]struct {
			call func()
			want []string
		}{
			"JSON":           {func() { s.post(c, "/Test.See", "{}") }, []string{"POST /Test.See Test.See"}},
			"a route":        {func() { s.post(c, "/see", "{}") }, []string{"POST /see Test.See"}},
			"a GET":          {func() { s.do(c, "GET", "/Test.Read?encoding=json&message={}", "") }, []string{"GET /Test.Read Test.Read"}},
			"a Connect feed": {func() { s.connect(c, "/Test.Watch", 0, `{"text":"a"}`) }, []string{"POST /Test.Watch Test.Watch"}},
			"gRPC": {func() {
				s.post(c, "/Test.See", "\x00\x00\x00\x00\x02{}", "Content-Type", "application/grpc+json", "Te", "trailers")
			}, []string{"POST /Test.See Test.See"}},
			"JSON-RPC":       {func() { s.post(c, "/rpc", one) }, []string{"POST /rpc Test.See"}},
			"a batch":        {func() { s.post(c, "/rpc", "["+one+","+one+"]") }, []string{"POST /rpc Test.See", "POST /rpc Test.See"}},
			"rpcx's gateway": {func() { s.post(c, "/x", "{}", rpcxCall("Test", "See")...) }, []string{"POST /x Test.See"}},
			"no such method": {func() { s.post(c, "/Test.None", "{}") }, []string{"POST /Test.None Test.None"}},
		} {
			if name == "gRPC" && !h2 {
				continue
			}
			seen = nil
			if test.call(); !slices.Equal(seen, test.want) {
				t.Errorf("%s: middleware saw %q, want %q", name, seen, test.want)
			}
		}
	})
}

// A call that OnRequest refuses is not executed. A caller that middleware refuses does not learn of
// OnRequest.
func TestOnRequestRefusesCalls(t *testing.T) {
	t.Attr("rerun", "never")
	executed := 0
	options := &http.Options{JSONRPC: "/rpc", OnRequest: func(r *std.Request, _ *yodel.Call) error {
		switch r.Header.Get("Do") {
		case "refuse":
			return yodel.Errorf(yodel.FailedPrecondition, "not from here")
		case "fail":
			return errors.New("a secret")
		case "panic":
			panic("a secret")
		}
		return nil
	}}
	s := newSite(t, options, yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(func(ctx context.Context, _, token string) (context.Context, error) {
		if token != "right" {
			return nil, yodel.Errorf(yodel.PermissionDenied, "you are unknown")
		}
		return ctx, nil
	})}})
	must(t, s.Handle("Test.Count", func() { executed++ }))
	both(t, func(t *testing.T, h2 bool) {
		c := client(t, h2)
		for do, want := range map[string]string{
			"refuse": `"code":"failed_precondition","message":"not from here`, "fail": `"code":"permission_denied","message":"Test.Count: the HTTP request is not accepted`, "panic": `"code":"internal"`,
		} {
			r := s.post(c, "/Test.Count", "[]", "Do", do, "Authorization", "right")
			if !strings.Contains(r.body, want) || strings.Contains(r.body, "secret") || executed > 0 {
				t.Errorf("%s: got %d %s, and the method was executed %d times", do, r.StatusCode, r.body, executed)
			}
			r = s.post(c, "/rpc", `{"jsonrpc":"2.0","id":1,"method":"Test.Count","params":[]}`, "Do", do, "Authorization", "right")
			if !strings.Contains(r.body, `"error"`) || strings.Contains(r.body, "secret") || executed > 0 {
				t.Errorf("%s by JSON-RPC: got %d %s, and the method was executed %d times", do, r.StatusCode, r.body, executed)
			}
			if r := s.post(c, "/Test.Count", "[]", "Do", do, "Authorization", "wrong"); !strings.Contains(r.body, "you are unknown") {
				t.Errorf("%s: a caller with a wrong token gets %s", do, r.body)
			}
		}
		if s.post(c, "/Test.Count", "[]", "Authorization", "right"); executed != 1 {
			t.Errorf("a call that is not refused was executed %d times", executed)
		}
		executed = 0
	})
}

// OnRequest sees the header of a request before its body has come.
func TestOnRequestComesBeforeTheBody(t *testing.T) {
	seen := make(chan string, 1)
	s := newSite(t, &http.Options{OnRequest: func(_ *std.Request, call *yodel.Call) error {
		seen <- call.Method
		return nil
	}}, yodel.ServerOptions{})
	both(t, func(t *testing.T, h2 bool) {
		body, rest := io.Pipe()
		go func() { // the caller sends the body when the hook has been called
			select {
			case method := <-seen:
				_, err := rest.Write([]byte("{}"))
				rest.CloseWithError(cmp.Or(err, io.EOF))
				if method != string(see) {
					t.Errorf("OnRequest saw %s", method)
				}
			case <-time.After(20 * time.Second):
				rest.CloseWithError(errors.New("OnRequest was not called before the body"))
			}
		}()
		response := s.open(client(t, h2), std.MethodPost, "/Test.See", body, "Content-Type", "application/json")
		defer response.Body.Close()
		if response.StatusCode != std.StatusOK {
			t.Errorf("got %s", response.Status)
		}
	})
}
