// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/base64"
	std "net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress/gzip"
)

func TestPost(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		for _, path := range []string{"/Test/Echo", "/Test.Echo", "/Test.Read", "/Test/Read"} {
			r := s.post(c, path, `{"text":"ü"}`)
			if r.is(t, 200, `{"text":"ü"}`); r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: the headers are %v", path, r.Header)
			}
		}
		s.post(c, "/Test/Echo", `{"text":"x"}`, "Content-Type", "ignored: the first one counts").is(t, 200, `{"text":"x"}`)
		s.do(c, "POST", "/Test/Echo", `{}`, "Content-Type", `application/json; charset="UTF-8"`).is(t, 200, `{"text":""}`)
		s.post(c, "/Test/Echo", `{"text":`).fails(t, 400, yodel.InvalidArgument, "Test/Echo")
		r := s.post(c, "/Test/Fail", `{"text":"oh"}`)
		if r.fails(t, 400, yodel.FailedPrecondition, "it failed: oh"); r.Header.Get("Yodel-Not-Processed") != "" {
			t.Error("the method was executed")
		}
	})
}

func TestValues(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{CompressAbove: 1}), client(t, true)
	must(t, s.Handle("Values.None", func(context.Context) error { return nil }))
	must(t, s.Handle("Values.Sum", func(a, b, c int) int { return a + b + c }))
	must(t, s.Handle("Values.DivMod", func(a, b int) (int, int, error) {
		if b == 0 {
			return 0, 0, yodel.Errorf(yodel.InvalidArgument, "division by zero")
		}
		return a / b, a % b, nil
	}))
	must(t, s.Handle("Values.Repeat", func(word string, n int) (string, string) {
		return strings.Repeat(word, n), word
	}))
	s.MarkReadOnly("Values.Sum")
	s.post(c, "/Values/None", "[]").is(t, 200, "[]")
	s.post(c, "/Values/Sum", "[1, 2, 3]").is(t, 200, "6")
	s.post(c, "/Values/DivMod", " [17,5] ").is(t, 200, "[3,2]")
	s.post(c, "/Values/DivMod", "[17,0]").fails(t, 400, yodel.InvalidArgument, "division by zero")
	s.post(c, "/Values/DivMod", "[17]").fails(t, 400, yodel.InvalidArgument, "Values.DivMod")
	s.post(c, "/Values/DivMod", `{"a":1}`).fails(t, 400, yodel.InvalidArgument, "must be a JSON array")
	s.do(c, "GET", "/Values/Sum?encoding=json&message=[1,2,4]", "").is(t, 200, "7")

	// Compression is of the JSON array, in both directions.
	packed, err := gzip.Compressor.Append(nil, []byte(`["x",2000]`))
	must(t, err)
	r := s.post(c, "/Values/Repeat", string(packed), "Content-Encoding", "gzip", "Accept-Encoding", "gzip")
	if got := unpacked(t, r); got != `["`+strings.Repeat("x", 2000)+`","x"]` {
		t.Errorf("got %d, headers %v, body %.60q", r.StatusCode, r.Header, got)
	}
}

// unpacked returns the body of a reply, decompressed as its headers say.
func unpacked(t testing.TB, r reply) string {
	t.Helper()
	if r.Header.Get("Content-Encoding") == "" {
		return r.body
	}
	b, err := gzip.Compressor.Decompress(nil, []byte(r.body), 1<<20)
	must(t, err)
	return string(b)
}

func TestGet(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{CompressAbove: 1}), client(t, h2)
		message := `{"text":"ü+=;"}`
		packed, err := gzip.Compressor.Append(nil, []byte(message))
		must(t, err)
		for _, query := range []url.Values{
			{"encoding": {"json"}, "message": {message}},
			{"encoding": {"json"}, "message": {message}, "connect": {"v1"}},
			{"encoding": {"json"}, "message": {base64.URLEncoding.EncodeToString([]byte(message))}, "base64": {"1"}},
			{"encoding": {"json"}, "message": {base64.RawURLEncoding.EncodeToString([]byte(message))}, "base64": {"1"}},
			{"encoding": {"json"}, "message": {base64.RawURLEncoding.EncodeToString(packed)}, "base64": {"1"}, "compression": {"gzip"}},
		} {
			r := s.do(c, "GET", "/Test/Read?"+query.Encode(), "")
			if r.is(t, 200, message); r.Header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("%v: the headers are %v", query, r.Header)
			}
		}
		s.do(c, "GET", "/Test/Read?encoding=json&message=%7B%7D&connect=v2", "").fails(t, 400, yodel.InvalidArgument, "version")
		s.do(c, "GET", "/Test/Read?encoding=nope&message=%7B%7D", "").fails(t, 415, yodel.Unknown, `no codec for the encoding "nope"`)
		s.do(c, "GET", "/Test/Read?encodng=json&message=%7B%7D", "").fails(t, 415, yodel.Unknown, "needs the parameters encoding and message")
		s.do(c, "GET", "/Test/Read?encoding=json&message=!&base64=1", "").fails(t, 400, yodel.InvalidArgument, "base64")
		s.do(c, "GET", "/Test/Read?encoding=json&message=%7B%7D&compression=lzma", "").fails(t, 501, yodel.Unimplemented, "lzma")
	})
}

// Codes that gRPC does not have arrive as they were sent. Their HTTP status is 500, as in Connect.
func TestCodesWithoutNames(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, rpc, yodel.ServerOptions{}), client(t, h2)
		must(t, s.HandleCall("Test.Code", func(context.Context, *yodel.Call) error { return yodel.Errorf(1001, "ours") }))
		s.post(c, "/Test/Code", "{}").is(t, 500, `{"code":"code_1001","message":"ours"}`)
		s.post(c, "/Test/Code", "{}", "Connect-Protocol-Version", "1").is(t, 500, `{"code":"code_1001","message":"ours"}`)
		if r := s.do(c, "POST", "/Test/Code", "\x00\x00\x00\x00\x02{}", "Content-Type", "application/connect+json"); !strings.Contains(r.body, `"code":"code_1001"`) {
			t.Errorf("a stream: got %d %q", r.StatusCode, r.body)
		}
		if r := s.do(c, "POST", "/Test/Code", "\x00\x00\x00\x00\x02{}", "Content-Type", "application/grpc-web+json"); !strings.Contains(r.body, "grpc-status: 1001\r\n") {
			t.Errorf("gRPC-Web: got %d %q", r.StatusCode, r.body)
		}
		s.post(c, "/rpc", `{"jsonrpc":"2.0","id":1,"method":"Test.Code"}`).is(t, 200,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"ours","data":{"code":"code_1001"}}}`)
	})
}

func TestStatus(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		for _, test := range []struct {
			method, path, contentType string
			status                    int
			header, value             string
		}{
			{"POST", "/Test/Nothing", "application/json", 404, "", ""},
			{"POST", "/Test/Nothing", "text/plain", 404, "", ""},
			{"GET", "/", "", 404, "", ""},
			{"GET", "/Test/Echo?encoding=json&message={}", "", 405, "Allow", "POST"},
			{"GET", "/Test/Echo", "", 405, "Allow", "POST"},
			{"PUT", "/Test/Echo", "application/json", 405, "Allow", "POST"},
			{"DELETE", "/Test/Read", "", 405, "Allow", "GET, HEAD, POST"},
			{"OPTIONS", "/Test/Read", "", 405, "Allow", "GET, HEAD, POST"},
			{"POST", "/Test/Echo", "", 415, "Accept-Post", "application/json"},
			{"POST", "/Test/Echo", "text/plain", 415, "Accept-Post", "application/json"},
			{"POST", "/Test/Echo", "application/x-www-form-urlencoded", 415, "", ""},
			{"POST", "/Test/Echo", "application/json; charset=latin1", 415, "", ""},
			{"POST", "/Test/Echo", "application/proto", 415, "", ""},
			{"POST", "/Test/Echo", "application/grpc-web+proto", 200, "", ""}, // with an error of gRPC
			{"POST", "/Test/Echo", "application/connect+proto", 415, "", ""},
			{"GET", "/Test/Read", "application/grpc-web+json", 405, "Allow", "POST"},
		} {
			var headers []string
			if test.contentType != "" {
				headers = []string{"Content-Type", test.contentType}
			}
			r := s.do(c, test.method, test.path, "{}", headers...)
			if r.StatusCode != test.status || r.Header.Get(test.header) != test.value {
				t.Errorf("%s %s with %s: got %d %v %s, want %d and %s: %s", test.method, test.path, test.contentType,
					r.StatusCode, r.Header, r.body, test.status, test.header, test.value)
			}
		}
		if calls := s.Stats().Methods; len(calls) == 0 {
			t.Error("no statistics")
		} else {
			for _, m := range calls {
				failed := uint64(0)
				for _, n := range m.Errors {
					failed += n
				}
				if m.Calls > failed {
					t.Errorf("%s was executed", m.Name)
				}
			}
		}
	})
}

// A method with a stream cannot be called with a plain body, and the error says what can.
func TestUnaryCallOfAStream(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, true)
	for _, path := range []string{"/Test/Watch", "/Test/Gather", "/Test/Chat"} {
		s.post(c, path, "{}").fails(t, std.StatusNotImplemented, yodel.Unimplemented, strings.ReplaceAll(path[1:], "/", "."))
	}
}
