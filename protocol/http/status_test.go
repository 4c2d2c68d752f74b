// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	std "net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// Every error has the form of the errors of calls, whatever refuses the request.
func TestErrorsOfRequestsThatAreNotCallsHaveTheFormOfCalls(t *testing.T) {
	routes := []http.Route{
		{Pattern: "GET /v1/read/{text}", Method: string(read)},
		{Pattern: "PATCH /v1/read/{text}", Method: string(echo)},
		{Pattern: "GET /v1/write", Method: string(echo)},
		{Pattern: "a panic", Method: string(echo), Binding: bindingThat{match: func(_, path string) bool {
			if path == "/panic" {
				panic("oh")
			}
			return false
		}}},
	}
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, &http.Options{JSONRPC: "/rpc", OpenAPI: "/openapi.json", RPCX: true, Routes: routes}, yodel.ServerOptions{}), client(t, h2)
		for _, test := range []struct {
			method, path string
			headers      []string // after the content type
			status       int
			code         yodel.Code
			id           string
			allow, post  string
		}{
			{"GET", "/", []string{""}, 404, yodel.Unimplemented, "YDL2002", "", ""},
			{"GET", "/favicon.ico", []string{""}, 404, yodel.Unimplemented, "YDL2002", "", ""},
			{"POST", "/Test/Nothing", []string{"text/plain"}, 404, yodel.Unimplemented, "YDL2002", "", ""},
			{"POST", "/Test/Nothing", []string{"application/json"}, 404, yodel.Unimplemented, "YDL2002", "", ""},
			{"PUT", "/Test/Nothing", []string{"application/json"}, 404, yodel.Unimplemented, "YDL2002", "", ""},
			{"PUT", "/Test/Echo", []string{"application/json"}, 405, yodel.Unknown, "", "POST", ""},
			{"GET", "/Test/Echo", []string{""}, 405, yodel.Unknown, "", "POST", ""},
			{"DELETE", "/Test/Read", []string{""}, 405, yodel.Unknown, "", "GET, HEAD, POST", ""},
			{"GET", "/rpc", []string{""}, 405, yodel.Unknown, "", "POST", ""},
			{"POST", "/openapi.json", []string{""}, 405, yodel.Unknown, "", "GET, HEAD", ""},
			{"POST", "/v1/read/x", []string{"application/json"}, 405, yodel.Unknown, "", "GET, HEAD, PATCH", ""},
			{"DELETE", "/v1/read/x", []string{""}, 405, yodel.Unknown, "", "GET, HEAD, PATCH", ""},
			{"GET", "/v1/write", []string{""}, 405, yodel.Unknown, "", "", ""},
			{"POST", "/Test/Echo", []string{"text/plain"}, 415, yodel.Unknown, "YDL2003", "", "application/json"},
			{"GET", "/Test/Read", []string{""}, 415, yodel.Unknown, "YDL2003", "", "application/json"},
			{"PATCH", "/v1/read/x", []string{"text/plain"}, 415, yodel.Unknown, "YDL2003", "", "application/json"},
			{"POST", "/rpc", []string{"text/plain"}, 415, yodel.Unknown, "YDL2003", "", "application/json"},
			{"POST", "/rpc", []string{"application/json", "Connect-Timeout-Ms", "x"}, 400, yodel.InvalidArgument, "", "", ""},
			{"POST", "/rpc", []string{"application/json", "X-JSONRPC-2.0", "true", "X-RPCX-Meta", "%zz"}, 400, yodel.InvalidArgument, "", "", ""},
			{"POST", "/rpc", []string{"application/json", "Large", strings.Repeat("x", 17<<10)}, 431, yodel.ResourceExhausted, "YDL2203", "", ""},
			{"POST", "/Test/Echo", []string{"application/json", "Large", strings.Repeat("x", 17<<10)}, 431, yodel.ResourceExhausted, "YDL2203", "", ""},
			{"POST", "/panic", []string{"application/json"}, 500, yodel.Internal, "", "", ""},
		} {
			r := s.do(c, test.method, test.path, "{}", append([]string{"Content-Type"}, test.headers...)...)
			r.fails(t, test.status, test.code, "")
			if h := r.Header; !strings.HasPrefix(h.Get("Content-Type"), "application/json") || h.Get("Yodel-Error-Id") != test.id || h.Get("Allow") != test.allow || h.Get("Accept-Post") != test.post {
				t.Errorf("%s %s %.60q: the headers are %v", test.method, test.path, test.headers, h)
			}
			if r.Header.Get("Yodel-Not-Processed") != "1" && test.status != std.StatusBadRequest {
				t.Errorf("%s %s %.60q: it may have been executed", test.method, test.path, test.headers)
			}
		}
	})
}

// Requests that no protocol serves have errors in the form of all others, also those of Connect,
// gRPC, gRPC-Web and rpcx, and those for another host.
func TestRejectedRequestsOfProtocolsHaveTheFormOfCalls(t *testing.T) {
	s, c := newSite(t, &http.Options{RPCX: true, Hosts: []string{"127.0.0.1"}}, yodel.ServerOptions{}), client(t, false)
	named := newSite(t, &http.Options{Hosts: []string{"api.example"}}, yodel.ServerOptions{})
	for _, test := range []struct {
		method, path string
		headers      []string
		status       int
	}{
		{"DELETE", "/", rpcxCall("Test", "Echo"), 405},
		{"DELETE", "/Test/Echo", []string{"Content-Type", "application/json", "Connect-Protocol-Version", "1"}, 405},
		{"GET", "/Test/Echo?connect=v1&encoding=json&message=%7B%7D", nil, 405},
		{"POST", "/Test/Echo", []string{"Content-Type", "application/none", "Connect-Protocol-Version", "1"}, 415},
		{"POST", "/Test/Nothing", []string{"Content-Type", "application/none", "Connect-Protocol-Version", "1"}, 404},
		{"GET", "/Test/Read", []string{"Content-Type", "application/grpc-web+json"}, 405},
		{"POST", "/Test/Echo", []string{"Content-Type", "application/connect+none"}, 415},
		{"POST", "/Test/Echo", []string{"Content-Type", "application/grpc"}, 505},
	} {
		for site, status := range map[*site]int{s: test.status, named: 421} {
			r := site.do(c, test.method, test.path, "{}", test.headers...)
			var e yodel.Error
			if err := json.Unmarshal([]byte(r.body), &e); err != nil || r.StatusCode != status || e.Code == 0 || e.Message == "" {
				t.Errorf("%s %s with %v: got %d %s, want %d", test.method, test.path, test.headers, r.StatusCode, r.body, status)
			}
			if h := r.Header; !strings.HasPrefix(h.Get("Content-Type"), "application/json") || h.Get("Yodel-Not-Processed") != "1" {
				t.Errorf("%s %s with %v: the headers are %v", test.method, test.path, test.headers, h)
			}
		}
	}
}

// The statistics and the records of a server, and its middleware, have the code that the caller of
// a request that is not a call gets.
func TestStatisticsHaveTheCodeOfTheAnswer(t *testing.T) {
	routes := []http.Route{{Pattern: "PATCH /v1/read/{text}", Method: string(read)}, {Pattern: "POST /v1/echo", Method: string(echo)}, {Pattern: "GET /v1/write", Method: string(echo)}, {Pattern: "POST /v1/watch", Method: string(watch)}}
	both(t, func(t *testing.T, h2 bool) {
		for _, test := range []struct {
			method, path, body string
			headers            []string // after the content type
			status             int
		}{
			{"POST", "/Test/Nothing", "{}", []string{"application/json"}, 404},
			{"GET", "/favicon.ico", "", []string{""}, 404},
			{"PUT", "/Test/Echo", "{}", []string{"application/json"}, 405},
			{"GET", "/Test/Echo", "", []string{""}, 405},
			{"GET", "/v1/write", "", []string{""}, 405},
			{"DELETE", "/Test/Echo", "{}", []string{"application/json", "Connect-Protocol-Version", "1"}, 405},
			{"POST", "/Test/Echo", "{}", []string{"text/plain"}, 415},
			{"GET", "/Test/Read", "", []string{""}, 415},
			{"PATCH", "/v1/read/x", "{}", []string{"text/plain"}, 415},
			{"POST", "/Test/Echo", "{}", []string{"application/none", "Connect-Protocol-Version", "1"}, 415},
			{"POST", "/Test/Gather", "{}", []string{"application/json"}, 501},
			{"POST", "/Test/Watch", "{}", []string{"application/json"}, 501},
			{"POST", "/v1/watch", "{}", []string{"application/json"}, 501},
			{"POST", "/Test/Echo", "{", []string{"application/json"}, 400},
		} {
			var passed yodel.Code
			s, c := newSite(t, &http.Options{Routes: routes}, yodel.ServerOptions{Diagnostics: true, Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					err := next(ctx, call)
					passed = yodel.CodeOf(err)
					return err
				}
			}}}), client(t, h2)
			r := s.do(c, test.method, test.path, test.body, append([]string{"Content-Type"}, test.headers...)...)
			var answer struct{ Code string }
			if answer.Code = httpwire.CodeOf(r.StatusCode).String(); strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
				must(t, json.Unmarshal([]byte(r.body), &answer))
			}
			must(t, s.stop())
			counted := make(map[string]uint64)
			for _, m := range s.Stats().Methods {
				for code, n := range m.Errors {
					counted[code] += n
				}
			}
			kept := ""
			for _, one := range s.Samples(&introspect.SamplesQuery{Failed: true}).Calls {
				kept = one.Code
			}
			what := fmt.Sprintf("%s %s %.60q", test.method, test.path, test.headers)
			if r.StatusCode != test.status || passed.String() != answer.Code {
				t.Errorf("%s: got %d %s, the middleware %v", what, r.StatusCode, r.body, passed)
			}
			want := map[string]uint64{answer.Code: 1}
			if test.status == std.StatusNotFound {
				want = nil // there are statistics of methods
			}
			if !maps.Equal(counted, want) || kept != answer.Code {
				t.Errorf("%s: the answer has %s, the statistics %v, the record %q", what, answer.Code, counted, kept)
			}
		}
	})
}

// A bindingThat matches with a function.
type bindingThat struct {
	match func(verb, path string) bool
}

func (b bindingThat) Match(verb, path string) ([]string, bool) { return nil, b.match(verb, path) }
func (bindingThat) Request(_ []string, _ url.Values, body []byte) ([]byte, error) {
	return body, nil
}
func (bindingThat) Reply() func([]byte) ([]byte, error) { return nil }

// Another HTTP server gets the same form when the server of yodel has shut down.
func TestErrorsOfAServerThatHasShutDownHaveTheFormOfCalls(t *testing.T) {
	s := yodel.NewServer(nil)
	must(t, s.Shutdown(t.Context()))
	w := httptest.NewRecorder()
	http.New(nil).Handler(s).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/Test/Echo", nil))
	r := reply{w.Result(), w.Body.String()}
	if r.fails(t, 503, yodel.Unavailable, ""); r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Yodel-Not-Processed") != "1" {
		t.Errorf("the headers are %v", r.Header)
	}
}

// A response says when to come back, in whole seconds, if the error does.
func TestRetryAfter(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, true)
	var e yodel.Error
	must(t, s.HandleCall("Test.Busy", func(context.Context, *yodel.Call) error {
		told := e
		return &told
	}))
	must(t, s.HandleStream("Test.BusyFeed", "feed", func(context.Context, *yodel.Call, func(any) error, func(any) error) error {
		told := e
		return &told
	}))
	for wait, want := range map[time.Duration][2]string{
		0: {}, time.Microsecond: {"1", "1"}, 20 * time.Millisecond: {"1", "20"}, time.Second: {"1", "1000"}, 1001 * time.Millisecond: {"2", "1001"}, 2 * time.Hour: {"7200", "7200000"},
	} {
		for code, status := range map[yodel.Code]int{yodel.ResourceExhausted: 429, yodel.Unavailable: 503} {
			e = yodel.Error{Code: code, Message: "busy", RetryAfter: wait}
			for _, r := range []reply{s.post(c, "/Test/Busy", "{}"), s.do(c, "POST", "/Test/BusyFeed", "{}", events...)} {
				r.fails(t, status, code, "busy")
				if got := [2]string{r.Header.Get("Retry-After"), r.Header.Get("Grpc-Retry-Pushback-Ms")}; got != want {
					t.Errorf("%v: got %q, want %q", wait, got, want)
				}
			}
		}
	}
}

// A client that repeats a request after 429 does not do so for one that is too large. Clients of
// Connect get the statuses of its specification.
func TestStatusesOfWhatIsTooLarge(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1000}}), client(t, false)
	must(t, s.Handle("Test.Large", func(context.Context) string { return jsonOf(2000) }))
	s.post(c, "/Test/Large", "[]").fails(t, 500, yodel.ResourceExhausted, "limit")
	s.post(c, "/Test/Large", "[]", "Connect-Protocol-Version", "1").fails(t, 429, yodel.ResourceExhausted, "limit")
	s.post(c, "/Test/Echo", jsonOf(2000)).fails(t, 413, yodel.ResourceExhausted, "limit")
	s.post(c, "/Test/Echo", jsonOf(2000), "Connect-Protocol-Version", "1").fails(t, 429, yodel.ResourceExhausted, "limit")
	s.post(c, "/Test/Echo", "{}", "Large", strings.Repeat("x", 17<<10)).fails(t, 431, yodel.ResourceExhausted, "limit")
	s.post(c, "/Test/Echo", "{}", "Large", strings.Repeat("x", 17<<10), "Connect-Protocol-Version", "1").fails(t, 429, yodel.ResourceExhausted, "limit")
	s.do(c, "GET", "/Test/Read?connect=v1&encoding=json&message="+url.QueryEscape(jsonOf(2000)), "").fails(t, 429, yodel.ResourceExhausted, "limit")
	s.do(c, "GET", "/Test/Read?encoding=json&message="+url.QueryEscape(jsonOf(2000)), "").fails(t, 413, yodel.ResourceExhausted, "limit")
}
