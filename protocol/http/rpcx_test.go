// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/json"
	"maps"
	std "net/http"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

var gateway = &http.Options{RPCX: true}

// rpcxCall returns the headers of a call of rpcx's gateway.
func rpcxCall(service, method string, more ...string) []string {
	return append([]string{"X-RPCX-SerializeType", "1", "X-RPCX-ServicePath", service, "X-RPCX-ServiceMethod", method}, more...)
}

// hasRPCX checks the status, the body, and the text of the error.
func (r reply) hasRPCX(t testing.TB, status int, body, text string) {
	t.Helper()
	r.is(t, status, body)
	if got := r.Header.Get("X-Rpcx-Errormessage"); text == "" && got != "" || !strings.Contains(got, text) {
		t.Errorf("got the error %q, want %q", got, text)
	}
	if got := r.Header.Get("X-Rpcx-Messagestatustype"); (got == "Error") != (text != "") {
		t.Errorf("got the status type %q", got)
	}
}

func TestGatewayOfRPCX(t *testing.T) {
	s := newSite(t, gateway, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1000, MaxPairs: 10}})
	must(t, s.Handle("Test.Lines", func(context.Context, *text) (*text, error) {
		return nil, yodel.Errorf(yodel.Unknown, "two\r\nlines\x00")
	}))
	must(t, s.Handle("Test.Reserve", func(ctx context.Context, in *text) (*text, error) {
		call := yodel.CallFrom(ctx)
		call.SetHeader(yodel.Metadata{"both": "1", "same": "s"})
		call.Trailer = yodel.Metadata{"__AUTH": "x", "k": "v", "both": "2", "same": "s"}
		if in.Text == "" {
			return nil, yodel.Errorf(yodel.NotFound, "nothing")
		}
		return in, nil
	}))
	must(t, s.Handle("Test.Header", func(ctx context.Context, in *text) (*text, error) {
		call := yodel.CallFrom(ctx)
		call.SetHeader(yodel.Metadata{"a": "1 &"})
		call.Trailer = yodel.Metadata{"ü": "2"}
		return in, nil
	}))
	both(t, func(t *testing.T, h2 bool) {
		c := client(t, h2)
		post := func(body string, headers ...string) reply {
			t.Helper()
			return s.do(c, std.MethodPost, "/any/path", body, headers...)
		}
		const hello = `{"text":"hello"}`
		r := post(hello, rpcxCall("Test", "Echo", "X-RPCX-MessageID", "42", "X-RPCX-Version", "1", "X-RPCX-MesssageType", "0", "X-RPCX-MessageType", "Request")...)
		r.hasRPCX(t, 200, hello, "")
		for key, want := range map[string]string{
			"X-Rpcx-Messageid": "42", "X-Rpcx-Version": "1", "X-Rpcx-Serializetype": "1", "X-Rpcx-Servicepath": "Test", "X-Rpcx-Servicemethod": "Echo",
			"X-Rpcx-Meta": "", "Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff",
		} {
			if got := r.Header[key]; len(got) != 1 || got[0] != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		if r = post(hello, rpcxCall("Test", "Header")...); r.Header.Get("X-Rpcx-Meta") != "a=1+%26&%C3%BC=2" {
			t.Errorf("the metadata is %q", r.Header.Get("X-Rpcx-Meta"))
		}
		s.do(c, std.MethodDelete, "/", hello, rpcxCall("Test", "Echo")...).fails(t, 405, yodel.Unknown, "calls of rpcx need the method POST, GET or PUT")
		post(hello, rpcxCall("Test", "Lines")...).hasRPCX(t, 500, "", "two  lines")
		before := s.Stats().LeftOut
		r = post(hello, rpcxCall("Test", "Reserve")...)
		if r.hasRPCX(t, 200, hello, ""); r.Header.Get("X-Rpcx-Meta") != "both=2&k=v&same=s" {
			t.Errorf("the metadata is %q", r.Header.Get("X-Rpcx-Meta"))
		}
		r = post("{}", rpcxCall("Test", "Reserve")...)
		if r.hasRPCX(t, 500, "", "not_found: nothing"); r.Header.Get("X-Rpcx-Meta") != "both=2&k=v&same=s" {
			t.Errorf("beside an error, the metadata is %q", r.Header.Get("X-Rpcx-Meta"))
		}
		if left := s.Stats().LeftOut - before; left != 4 {
			t.Errorf("%d pairs were left out, want 4", left)
		}
		post(hello, rpcxCall("Test", "Fail")...).hasRPCX(t, 500, "", "failed_precondition: it failed: hello")
		post(hello, rpcxCall("Test", "Nope")...).hasRPCX(t, 500, "", "rpcx: can't find method Nope")
		post(hello, rpcxCall("Nope", "Echo")...).hasRPCX(t, 500, "", "rpcx: can't find service Nope")
		post(hello, rpcxCall("Test", "Watch")...).hasRPCX(t, 500, "", "YDL2006")
		post(strings.Repeat(" ", 1001), rpcxCall("Test", "Echo")...).hasRPCX(t, 500, "", "YDL2201")
		post(hello, rpcxCall("Test", "Echo", "X-RPCX-Meta", strings.Repeat("k=v&", 9)+"a&b&c&d&e&f&g&h&i&j&l")...).hasRPCX(t, 500, "", "YDL2203")
		post(hello, rpcxCall("Test", "Echo", "X-RPCX-Oneway", "1")...).hasRPCX(t, 200, "", "")
		post(hello, "X-RPCX-SerializeType", "16", "X-RPCX-ServiceMethod", "Echo").hasRPCX(t, 200, "", "there is no serialize type 16")
		post(hello, "X-RPCX-ServiceMethod", "Echo").hasRPCX(t, 200, "", "empty serialized type")
		post(hello, "X-RPCX-SerializeType", "1").hasRPCX(t, 200, "", "empty servicemethod")
	})
}

// The metadata of a call is that of rpcx. Requests of web pages cannot set yodel's own fields.
func TestMetadataOfTheGatewayOfRPCX(t *testing.T) {
	s := newSite(t, gateway, yodel.ServerOptions{})
	c := client(t, false)
	get := func(headers ...string) seen {
		t.Helper()
		var got seen
		r := s.do(c, std.MethodPost, "/Test", "{}", rpcxCall("Test", "See", append([]string{
			"Authorization", "Bearer x", "Yodel-Tenant", "header", "X-RPCX-Meta", "k=v&__ServerTimeout=60000&yodel-tenant=anna&yodel-budget=3&traceparent=p",
		}, headers...)...)...)
		must(t, json.Unmarshal([]byte(r.body), &got))
		return got
	}
	got := get()
	if want := (yodel.Metadata{"k": "v", "authorization": "Bearer x", "traceparent": "p"}); !maps.Equal(got.Metadata, want) {
		t.Errorf("got %q, want %q", got.Metadata, want)
	}
	if got.Left < 50*time.Second || got.Left > time.Minute || got.Call.Tenant != "anna" || got.Call.Budget != 3 || got.Call.Trace != "p" {
		t.Errorf("got %+v", got)
	}
	if got = get("Origin", "https://evil.example"); got.Call.Tenant != "" || got.Call.Budget != 0 || got.Call.Trace != "p" {
		t.Errorf("from a web page: got %+v", got)
	}
}

// Without Options.RPCX, the headers have no meaning.
func TestGatewayOfRPCXIsOff(t *testing.T) {
	s := newSite(t, nil, yodel.ServerOptions{})
	c := client(t, false)
	s.do(c, std.MethodPost, "/any/path", `{"text":"x"}`, rpcxCall("Test", "Echo")...).fails(t, 404, yodel.Unimplemented, `"any/path" is not a method`)
	s.do(c, std.MethodPost, "/any/path", `{"jsonrpc":"2.0","method":"Test.Read","params":{},"id":1}`, "X-JSONRPC-2.0", "true").fails(t, 404, yodel.Unimplemented, `"any/path" is not a method`)
}

func TestJSONRPCOfRPCX(t *testing.T) {
	s := newSite(t, gateway, yodel.ServerOptions{})
	c := client(t, false)
	const request = `{"jsonrpc":"2.0","method":"Test.See","params":{},"id":1}`
	r := s.do(c, std.MethodPost, "/any/path", request, "X-JSONRPC-2.0", "true", "X-RPCX-Meta", "k=v", "Authorization", "x")
	var got struct{ Result seen }
	must(t, json.Unmarshal([]byte(r.body), &got))
	if md := got.Result.Metadata; r.StatusCode != std.StatusOK || md["k"] != "v" || md["authorization"] != "x" || md["x-rpcx-meta"] != "" || md["x-jsonrpc-2.0"] != "" {
		t.Errorf("got %d, %s", r.StatusCode, r.body)
	}
	s.do(c, std.MethodPost, "/", request, "X-JSONRPC-2.0", "true", "X-RPCX-Meta", "%zz").fails(t, 400, yodel.InvalidArgument, "the header X-RPCX-Meta is malformed")
	s.do(c, std.MethodGet, "/", "", "X-JSONRPC-2.0", "true").fails(t, 405, yodel.Unknown, "JSON-RPC needs the method POST")
}
