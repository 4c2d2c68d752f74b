// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	std "net/http"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

func (r reply) seen(t testing.TB) (out seen) {
	t.Helper()
	if r.StatusCode != std.StatusOK {
		t.Fatalf("got %d %s", r.StatusCode, r.body)
	}
	must(t, json.Unmarshal([]byte(r.body), &out))
	return out
}

// A handler gets the headers of a request, but not those of the protocol and of one hop.
func TestMetadataOfARequest(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		got := s.post(c, "/Test/See", "{}", "Color", "dark blue", "color", "red", "Data-Bin", "AAEC", "authorization", "Bearer x", "Accept-Language", "de",
			"User-Agent", "shop/1", "Accept", "*/*", "Content-Language", "de", "Cookie", "a=b", "Referer", "x", "X-Forwarded-For", "10.0.0.1",
			"Te", "trailers", "Accept-Encoding", "gzip", "Yodel-Tenant", "t", "Grpc-Foo", "x", "Connect-Foo", "x", "Date", "now").seen(t)
		want := yodel.Metadata{
			"color": "dark blue, red", "data-bin": "AAEC", "authorization": "Bearer x", "accept-language": "de", "user-agent": "shop/1", "accept": "*/*",
			"content-language": "de", "cookie": "a=b", "referer": "x", "x-forwarded-for": "10.0.0.1",
		}
		if !maps.Equal(got.Metadata, want) {
			t.Errorf("got %v, want %v", got.Metadata, want)
		}
	})
}

// A header whose name is nearly one of yodel's own fails the call, which would be executed without
// what its caller wanted. Other headers may be those of newer clients.
func TestMisspeltHeaders(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, &http.Options{JSONRPC: "/rpc", Origins: []string{"*"}}, yodel.ServerOptions{}), client(t, h2)
		for _, test := range []struct{ header, meant string }{
			{"yodel-tennant", "yodel-tenant"}, {"Yodel-Tenat", "yodel-tenant"}, {"yodel_tenant", "yodel-tenant"}, {"yodel-tenants", "yodel-tenant"},
			{"yodel-critcality", "yodel-criticality"}, {"yodel-budgets", "yodel-budget"}, {"yodel-explian", "yodel-explain"}, {"yodel-keys", "yodel-key"},
			{"yodel-tenant", ""}, {"YODEL-TENANT", ""}, {"yodel-deadline", ""}, {"yodel-zone", ""}, {"yodel-stale", ""}, {"yodel-error-id", ""}, {"yodel-not-processed", ""},
			{"yodel-code", ""}, {"tennant", ""}, {"x-yodel-tennant", ""},
		} {
			for _, p := range []struct{ path, media, body, refused string }{
				{"/Test/See", "application/json", "{}", `{"code":"invalid_argument"`},
				{"/Test/See", "application/grpc-web+json", "\x00\x00\x00\x00\x02{}", "grpc-status: 3"},
				{"/Test/See", "application/connect+json", "\x00\x00\x00\x00\x02{}", `"code":"invalid_argument"`},
				{"/rpc", "application/json", `{"jsonrpc":"2.0","id":1,"method":"Test.See","params":{}}`, `{"code":"invalid_argument"`},
			} {
				r := s.do(c, "POST", p.path, p.body, "Content-Type", p.media, test.header, "acme")
				if got, want := strings.Contains(r.body, p.refused), test.meant != ""; got != want || want && !strings.Contains(r.body, test.meant) {
					t.Errorf("%s, %s %s: got %d %s", test.header, p.path, p.media, r.StatusCode, r.body)
				}
			}
		}
		if r := s.post(c, "/Test/See", "{}", "Origin", "https://shop.example", "yodel-tennant", "acme"); r.StatusCode != std.StatusOK {
			t.Errorf("a page, which cannot set such headers: got %d %s", r.StatusCode, r.body)
		}
	})
}

// Headers set the fields of a call. Web pages cannot set yodel's own.
func TestFieldsOfACall(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, &http.Options{Origins: []string{"*"}}, yodel.ServerOptions{}), client(t, h2)
		headers := []string{
			"Yodel-Criticality", "30", "Yodel-Tenant", "acme", "Yodel-Key", "k", "Yodel-Budget", "5", "Yodel-Explain", "1",
			"Idempotency-Key", "i", "Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Tracestate", "a=b", "Grpc-Previous-Rpc-Attempts", "2",
		}
		want := fields{
			Tenant: "acme", Key: "k", IdempotencyKey: "i", Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 a=b",
			Budget: 5, Criticality: 30, Attempt: 2, Explain: true,
		}
		if got := s.post(c, "/Test/See", "{}", headers...).seen(t).Call; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		want.Tenant, want.Key, want.Budget, want.Criticality, want.Explain = "", "", 0, 0, false
		if got := s.post(c, "/Test/See", "{}", append(headers, "Origin", "https://shop.example")...).seen(t).Call; got != want {
			t.Errorf("a web page: got %+v, want %+v", got, want)
		}
		outside := []string{"Yodel-Criticality", "101", "Yodel-Budget", "-1", "Grpc-Previous-Rpc-Attempts", "99999999999999999999", "Yodel-Explain", "yes"}
		if got := s.post(c, "/Test/See", "{}", outside...).seen(t).Call; got != (fields{}) {
			t.Errorf("values out of range: got %+v", got)
		}
	})
}

func TestDeadline(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		if left := s.post(c, "/Test/See", "{}").seen(t).Left; left != 0 {
			t.Errorf("a call without a deadline has %s left", left)
		}
		if left := s.post(c, "/Test/See", "{}", "Connect-Timeout-Ms", "60000").seen(t).Left; left < 30*time.Second || left > time.Minute+time.Millisecond {
			t.Errorf("a minute left: got %s", left)
		}
		s.post(c, "/Test/Long", "{}", "Connect-Timeout-Ms", "20").fails(t, 504, yodel.DeadlineExceeded, "")
		receive(t, s.ended)
		for _, wrong := range []string{"soon", "-1", "12345678901", "1.5"} {
			s.post(c, "/Test/Echo", "{}", "Connect-Timeout-Ms", wrong).fails(t, 400, yodel.InvalidArgument, "connect-timeout-ms")
		}
	})
}

// A handler's metadata goes out as headers. The reply lacks what HTTP cannot carry, also if it is
// an error.
func TestMetadataOfAReply(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		var header, trailer yodel.Metadata
		var attachment []byte
		var failed error
		must(t, s.HandleCall("Test.Say", func(_ context.Context, call *yodel.Call) error {
			call.SetHeader(header)
			call.Trailer, call.ReplyAttachment, call.Reply = trailer, attachment, 1
			return failed
		}))
		for _, test := range []struct {
			md   yodel.Metadata
			want string // the values of the header X, with a line for each
			left uint64
		}{
			{yodel.Metadata{"x": "blue"}, "blue", 0},
			{yodel.Metadata{"X": "7"}, "7", 0},
			{yodel.Metadata{"X": "1", "x": "2"}, "1, 2", 0},
			{yodel.Metadata{"x": " a\t"}, "a", 0},
			{yodel.Metadata{"x": "a\r\nset-cookie: b"}, "", 1},
			{yodel.Metadata{"x": "ü"}, "", 1},
			{yodel.Metadata{"x": strings.Repeat("y", 17<<10)}, "", 1},
			{yodel.Metadata{"x": "a", "": "x", "a b": "x", "ü": "x", "A_\x00": "x"}, "a", 4},
			{yodel.Metadata{"x": "a", "grpc-status": "0", "connect-x": "x", "yodel-error-id": "0"}, "a", 3},
			{yodel.Metadata{"x": "a", "Content-Type": "text/html", "content-length": "3", "connection": "close", ":status": "404", "date": "x", "te": "x", "user-agent": "x"}, "a", 0},
			{many(129), "", 1},
		} {
			for _, failed = range []error{nil, yodel.Errorf(yodel.NotFound, "nothing")} {
				for _, prefix := range []string{"", "Trailer-"} {
					if header, trailer = test.md, nil; prefix != "" {
						header, trailer = nil, test.md
					}
					before := s.Stats().LeftOut
					r := s.post(c, "/Test/Say", "{}")
					if failed == nil {
						r.is(t, 200, "1")
					} else {
						r.fails(t, 404, yodel.NotFound, "nothing")
					}
					if got := strings.Join(r.Header.Values(prefix+"X"), "\n"); got != test.want || r.Header.Get("Content-Type") != "application/json" {
						t.Errorf("%.100v as %sX: got %q, %v", test.md, prefix, got, r.Header)
					}
					if left := s.Stats().LeftOut - before; left != test.left {
						t.Errorf("%.100v: %d pairs were left out, want %d", test.md, left, test.left)
					}
				}
			}
		}
		failed, trailer = nil, nil
		for value, want := range map[string]string{"AAEC, BAUG": "AAEC|BAUG", "AAEC": "AAEC", "???": "Pz8/", "\xff": "/w", "": ""} {
			header = yodel.Metadata{"X-Bin": value}
			if got := strings.Join(s.post(c, "/Test/Say", "{}").Header.Values("X-Bin"), "|"); got != want {
				t.Errorf("%q became %q, want %q", value, got, want)
			}
		}
		header, attachment = nil, []byte("x")
		s.post(c, "/Test/Say", "{}").fails(t, 500, yodel.Internal, "attachment")
	})
}

func many(n int) yodel.Metadata {
	md := make(yodel.Metadata)
	for i := range n {
		md[fmt.Sprint("k", i)] = "v"
	}
	return md
}

// The limits for metadata are those of Limits, and a request over them is not executed.
func TestMetadataLimits(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		var pairs []string
		for key, value := range many(128) {
			pairs = append(pairs, key, value)
		}
		if got := s.post(c, "/Test/See", "{}", pairs...).seen(t).Metadata; len(got) != 128 {
			t.Errorf("got %d pairs", len(got))
		}
		for _, headers := range [][]string{append(pairs, "One", "more"), {"Large", strings.Repeat("x", 17<<10)}} {
			r := s.post(c, "/Test/See", "{}", headers...)
			r.fails(t, 431, yodel.ResourceExhausted, "the limit is")
			if r.Header.Get("Yodel-Error-Id") != "YDL2203" || r.Header.Get("Yodel-Not-Processed") != "1" {
				t.Errorf("the headers are %v", r.Header)
			}
		}
		// Package net/http refuses more without reading it.
		response, err := s.try(t.Context(), c, "POST", "/Test/See", nil, "Large", strings.Repeat("x", 100<<10))
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode != std.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("got %d", response.StatusCode)
			}
		}
	})
}

// A page of another site whose name resolves to the server does not reach it, over any protocol.
func TestHosts(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		c := client(t, h2)
		some := newSite(t, &http.Options{Hosts: []string{"api.example", "::1"}, JSONRPC: "/rpc", RPCX: true, Handler: std.NotFoundHandler()}, yodel.ServerOptions{})
		all := newSite(t, nil, yodel.ServerOptions{})
		status := func(s *site, host, path string, header ...string) int {
			r, err := std.NewRequestWithContext(t.Context(), std.MethodPost, "http://"+s.addr+path, strings.NewReader("{}"))
			must(t, err)
			r.Host = host
			r.Header.Set("Content-Type", "application/json")
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			response, err := c.Do(r)
			must(t, err)
			response.Body.Close()
			return response.StatusCode
		}
		for _, host := range []string{"api.example", "API.example:80", "[::1]", "[::1]:80"} {
			if got := status(some, host, "/Test/Echo"); got != std.StatusOK {
				t.Errorf("%s: got %d", host, got)
			}
		}
		for _, host := range []string{"evil.example", "evil.example:80", "api.example.evil.example", some.addr, "[::2]"} {
			for path, header := range map[string][]string{
				"/Test/Echo": nil, "/Test/Echo?": {"Content-Type", "application/grpc"}, "/Test/Echo?1": {"Origin", "http://" + host}, "/rpc": nil,
				"/": {"X-RPCX-ServicePath", "Test"}, "/elsewhere": nil,
			} {
				if got := status(some, host, path, header...); got != std.StatusMisdirectedRequest {
					t.Errorf("%s %s %v: got %d", host, path, header, got)
				}
			}
		}
		if got := status(all, "evil.example", "/Test/Echo"); got != std.StatusOK {
			t.Errorf("without Hosts: got %d", got)
		}
	})
}

func TestOrigins(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		c := client(t, h2)
		const page, other = "https://shop.example", "https://evil.example"
		preflight := func(s *site, origin string) reply {
			return s.do(c, "OPTIONS", "/Test/Echo", "", "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type,x-color")
		}
		some := newSite(t, &http.Options{Origins: []string{page}}, yodel.ServerOptions{})
		r := preflight(some, page)
		if h := r.Header; r.StatusCode != std.StatusNoContent || h.Get("Access-Control-Allow-Origin") != page || h.Get("Access-Control-Allow-Headers") != "content-type,x-color" ||
			h.Get("Access-Control-Allow-Methods") != "POST" || h.Get("Vary") != "Origin" {
			t.Errorf("preflight: %d %v", r.StatusCode, r.Header)
		}
		r = some.post(c, "/Test/Echo", "{}", "Origin", page)
		if h := r.Header; r.StatusCode != std.StatusOK || h.Get("Access-Control-Allow-Origin") != page || !strings.Contains(h.Get("Access-Control-Expose-Headers"), "Grpc-Status") {
			t.Errorf("call: %d %v", r.StatusCode, r.Header)
		}
		for _, s := range []*site{some, newSite(t, nil, yodel.ServerOptions{})} {
			for _, r := range []reply{preflight(s, other), s.post(c, "/Test/Echo", "{}", "Origin", other)} {
				if r.Header.Get("Access-Control-Allow-Origin") != "" || r.StatusCode == std.StatusNoContent {
					t.Errorf("another origin: %d %v", r.StatusCode, r.Header)
				}
			}
		}
		// A cache must not give one origin the reply to another one.
		for _, headers := range [][]string{nil, {"Origin", other}} {
			if r := some.do(c, "GET", "/Test/Read?encoding=json&message={}", "", headers...); !strings.Contains(strings.Join(r.Header.Values("Vary"), ","), "Origin") {
				t.Errorf("headers %v: the reply has Vary: %v", headers, r.Header.Values("Vary"))
			}
		}
		all := newSite(t, &http.Options{Origins: []string{"*"}}, yodel.ServerOptions{})
		if r := preflight(all, other); r.StatusCode != std.StatusNoContent || r.Header.Get("Access-Control-Allow-Origin") != other {
			t.Errorf("all origins: %d %v", r.StatusCode, r.Header)
		}
	})
}
