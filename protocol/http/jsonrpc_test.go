// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/json"
	"maps"
	std "net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

var rpc = &http.Options{JSONRPC: "/rpc"}

// The server answers the examples of the specification over HTTP, with status 204 if there is no
// reply.
func TestSpecificationOfJSONRPC(t *testing.T) {
	s := newSite(t, rpc, yodel.ServerOptions{})
	must(t, s.HandleCall("subtract", func(_ context.Context, call *yodel.Call) error {
		var named struct{ Minuend, Subtrahend int }
		err := call.DecodeInto(&named)
		if list := make([]int, 0, 2); call.DecodeInto(&list) == nil && len(list) == 2 {
			named.Minuend, named.Subtrahend, err = list[0], list[1], nil
		}
		call.Reply = named.Minuend - named.Subtrahend
		return err
	}))
	must(t, s.Handle("sum", func(a, b, c int) int { return a + b + c }))
	must(t, s.Handle("get_data", func(context.Context) (string, int, error) { return "hello", 5, nil }))
	file, err := os.ReadFile("../internal/jsonrpc/testdata/specification.json")
	must(t, err)
	var examples []struct {
		Name, Request string
		Reply         json.RawMessage
	}
	if must(t, json.Unmarshal(file, &examples)); len(examples) != 15 {
		t.Fatalf("there are %d examples", len(examples))
	}
	for _, h2 := range []bool{false, true} {
		c := client(t, h2)
		for _, example := range examples {
			t.Run(example.Name, func(t *testing.T) {
				r := s.post(c, "/rpc", example.Request)
				if example.Reply == nil {
					r.is(t, 204, "")
					return
				}
				if r.StatusCode != std.StatusOK || r.Header.Get("Content-Type") != "application/json" || normal(t, r.body) != normal(t, string(example.Reply)) {
					t.Errorf("got %d %v %s\nwant %s", r.StatusCode, r.Header, r.body, example.Reply)
				}
			})
		}
	}
}

// normal returns a reply in a form that does not depend on the order of members and elements,
// without the text and the data of errors.
func normal(t testing.TB, reply string) string {
	t.Helper()
	var whole any
	must(t, json.Unmarshal([]byte(reply), &whole))
	replies, batch := whole.([]any)
	if !batch {
		replies = []any{whole}
	}
	var list []string
	for _, r := range replies {
		if e, ok := r.(map[string]any)["error"].(map[string]any); ok {
			r.(map[string]any)["error"] = e["code"]
		}
		b, err := json.Marshal(r)
		must(t, err)
		list = append(list, string(b))
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

func TestHeadersOfJSONRPC(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, rpc, yodel.ServerOptions{}), client(t, h2)
		const request = `{"jsonrpc":"2.0","id":1,"method":"Test.See","params":{}}`
		for _, body := range []string{request, "[" + request + "]"} {
			r := s.post(c, "/rpc", body, "Color", "blue", "Yodel-Tenant", "acme", "Connect-Timeout-Ms", "60000")
			var one struct{ Result seen }
			must(t, json.Unmarshal([]byte(strings.Trim(r.body, "[]")), &one))
			if got := one.Result; !maps.Equal(got.Metadata, yodel.Metadata{"color": "blue"}) || got.Call.Tenant != "acme" || got.Left == 0 {
				t.Errorf("got %+v", got)
			}
		}
		var header, trailer yodel.Metadata
		must(t, s.HandleCall("Test.Say", func(_ context.Context, call *yodel.Call) error {
			call.SetHeader(header)
			call.Trailer, call.Reply = trailer, 1
			return nil
		}))
		const say = `{"jsonrpc":"2.0","id":1,"method":"Test.Say"}`
		header, trailer = yodel.Metadata{"color": "blue"}, yodel.Metadata{"cost": "5"}
		if h := s.post(c, "/rpc", say).Header; h.Get("Color") != "blue" || h.Get("Trailer-Cost") != "5" {
			t.Errorf("the headers are %v", h)
		}
		if h := s.post(c, "/rpc", "["+say+"]").Header; h.Get("Color") != "" || h.Get("Trailer-Cost") != "" {
			t.Errorf("a batch: the headers are %v", h)
		}
		if left := s.Stats().LeftOut; left != 2 {
			t.Errorf("a batch: %d pairs were left out, want 2", left)
		}
		before := s.Stats().LeftOut
		header, trailer = nil, yodel.Metadata{"x": "a\r\nb", "content-type": "text/html", "Cost": "6"}
		r := s.post(c, "/rpc", say)
		if r.is(t, 200, `{"jsonrpc":"2.0","id":1,"result":1}`); r.Header.Get("Trailer-Cost") != "6" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("the headers are %v", r.Header)
		}
		if left := s.Stats().LeftOut - before; left != 1 {
			t.Errorf("%d pairs were left out, want 1", left)
		}
	})
}

func TestRefusalsOfJSONRPC(t *testing.T) {
	const request = `{"jsonrpc":"2.0","id":1,"method":"Test.Read","params":{}}`
	s := newSite(t, rpc, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 8 << 10, MaxMemory: 1 << 20, MaxOpen: 1000}})
	c := client(t, false)
	for _, test := range []struct {
		method, body string
		headers      []string
		status       int
	}{
		{"GET", "", nil, 405},
		{"POST", request, []string{"Content-Type", "text/plain"}, 415},
		{"POST", request, []string{"Content-Type", "application/grpc-web+json"}, 415},
		{"POST", request, []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 415},
		{"POST", request, []string{"Content-Type", "application/json", "Connect-Timeout-Ms", "x"}, 400},
		{"POST", request, []string{"Content-Type", "application/json", "Large", strings.Repeat("x", 17<<10)}, 431},
	} {
		if r := s.do(c, test.method, "/rpc", test.body, test.headers...); r.StatusCode != test.status {
			t.Errorf("%s with %v: got %d %s, want %d", test.method, test.headers, r.StatusCode, r.body, test.status)
		}
	}
	large := strings.Replace(request, "{}", `{"text":"`+strings.Repeat("x", 8<<10)+`"}`, 1)
	for _, r := range []reply{s.post(c, "/rpc", large), s.doReader(c, chunked{strings.NewReader(large)}, "/rpc")} {
		if r.StatusCode != std.StatusOK || !strings.Contains(r.body, "YDL2201") {
			t.Errorf("a large message: got %d %s", r.StatusCode, r.body)
		}
	}
	// A batch must not make the server hold a map of metadata for each of many calls.
	var pairs []string
	for key, value := range many(128) {
		pairs = append(pairs, key, value)
	}
	batch := "[" + strings.Repeat(request+",", 99) + request + "]"
	if r := s.post(c, "/rpc", batch, pairs...); r.StatusCode != std.StatusOK || !strings.Contains(r.body, "YDL3007") {
		t.Errorf("a batch with much metadata: got %d %s", r.StatusCode, r.body)
	}
	if r := s.post(c, "/rpc", batch); r.StatusCode != std.StatusOK || strings.Count(r.body, "result") != 100 {
		t.Errorf("a batch: got %d %s", r.StatusCode, r.body)
	}
	// Without the option, the path is that of a method.
	if r := newSite(t, nil, yodel.ServerOptions{}).post(c, "/rpc", request); r.StatusCode != std.StatusNotFound {
		t.Errorf("got %d", r.StatusCode)
	}
}

// A client that leaves ends the contexts of its calls.
func TestClientOfJSONRPCLeaves(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, rpc, yodel.ServerOptions{}), client(t, h2)
		const request = `{"jsonrpc":"2.0","id":1,"method":"Test.Long","params":{}}`
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			response, err := s.try(ctx, c, "POST", "/rpc", strings.NewReader("["+request+","+request+"]"), "Content-Type", "application/json")
			if err == nil {
				_ = response.Body.Close() // the error below says that there was one
			}
			left <- err
		}()
		receive(t, s.began)
		receive(t, s.began)
		cancel()
		receive(t, s.ended)
		receive(t, s.ended)
		if receive(t, left) == nil {
			t.Error("the call succeeded")
		}
	})
}
