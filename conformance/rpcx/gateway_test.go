// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/yodel-rpc/yodel"
)

// An answer is the response of a gateway: its status, its body, and the headers that rpcx defines.
type answer struct {
	status  int
	body    string
	headers map[string]string
}

// ask sends a request to a gateway.
func ask(t *testing.T, addr, verb, path, body string, headers map[string]string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t), verb, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range headers {
		request.Header.Set(key, value)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{response.StatusCode, string(b), make(map[string]string)}
	for key, values := range response.Header {
		if strings.HasPrefix(key, "X-Rpcx-") && values[0] != "" {
			a.headers[key] = values[0]
		}
	}
	return a
}

// A yodel server answers the requests of a gateway as rpcx does.
func TestGateway(t *testing.T) {
	theirs := startServer(t, roleGateway, "")
	ours := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Metadata["authorization"] == "bad" {
				return yodel.Errorf(yodel.Unauthenticated, "invalid token")
			}
			return next(ctx, call)
		}
	}}})
	packed, err := msgpack.Marshal(&Args{2, 3})
	if err != nil {
		t.Fatal(err)
	}
	const args = `{"A":2,"B":3}`
	large, err := json.Marshal(&Box{bytes.Repeat([]byte("a"), 2000)})
	if err != nil {
		t.Fatal(err)
	}
	with := func(method string, more ...string) map[string]string {
		h := map[string]string{"X-RPCX-MessageID": "42", "X-RPCX-SerializeType": "1", "X-RPCX-ServiceMethod": method, "X-RPCX-MesssageType": "0"}
		for i := 0; i < len(more); i += 2 {
			if h[more[i]] = more[i+1]; more[i+1] == "" {
				delete(h, more[i])
			}
		}
		return h
	}
	for name, test := range map[string]struct {
		verb, path, body string
		headers          map[string]string
		text             string // what yodel's text of the error has, if it differs
	}{
		"a call":                    {"POST", "/Arith", args, with("Mul"), ""},
		"PUT":                       {"PUT", "/Arith", args, with("Mul"), ""},
		"GET":                       {"GET", "/Arith", args, with("Mul"), ""},
		"DELETE":                    {"DELETE", "/Arith", args, with("Mul"), ""},
		"the path in a header":      {"POST", "/elsewhere", args, with("Mul", "X-RPCX-ServicePath", "Arith"), ""},
		"the version":               {"POST", "/Arith", args, with("Mul", "X-RPCX-Version", "1"), ""},
		"the type of rpcx's client": {"POST", "/Arith", args, with("Mul", "X-RPCX-MessageType", "Request"), ""},
		"without an ID":             {"POST", "/Arith", args, with("Mul", "X-RPCX-MessageID", ""), ""},
		"a heartbeat":               {"POST", "/Arith", args, with("Mul", "X-RPCX-Heartbeat", "true"), ""},
		"MessagePack":               {"POST", "/Arith", string(packed), with("Mul", "X-RPCX-SerializeType", "3"), ""},
		"raw bytes":                 {"POST", "/Arith", "hello", with("Bytes", "X-RPCX-SerializeType", "0"), ""},
		"gzip":                      {"POST", "/Arith", args, with("Mul", "X-RPCX-CompressType", "1"), ""},
		"a large message":           {"POST", "/Arith", string(large), with("Box"), ""},
		"a large one with gzip":     {"POST", "/Arith", string(large), with("Box", "X-RPCX-CompressType", "1"), ""}, // neither compresses bodies
		"one-way":                   {"POST", "/Arith", args, with("Mul", "X-RPCX-Oneway", "true"), ""},
		"a one-way call that fails": {"POST", "/Arith", args, with("Fail", "X-RPCX-Oneway", "true"), ""},
		"metadata":                  {"POST", "/Arith", args, with("Metadata", "X-RPCX-Meta", "k=v+w&l=%3D"), ""},
		"a good token":              {"POST", "/Arith", args, with("Mul", "Authorization", "good"), ""},
		"a bad token":               {"POST", "/Arith", args, with("Mul", "Authorization", "bad"), "unauthenticated: invalid token"},
		"an error":                  {"POST", "/Arith", args, with("Fail"), ""},
		"an error and a reply":      {"POST", "/Arith", args, with("Half"), ""},
		"an unknown method":         {"POST", "/Arith", args, with("Nope"), ""},
		"an unknown service":        {"POST", "/Nope", args, with("Mul"), ""},
		"an unknown codec":          {"POST", "/Arith", args, with("Mul", "X-RPCX-SerializeType", "9"), ""},
		"unreadable JSON":           {"POST", "/Arith", "{", with("Mul"), "invalid_argument"},
		"no service":                {"POST", "/", args, with("Mul"), ""},
		"no method":                 {"POST", "/Arith", args, with("Mul", "X-RPCX-ServiceMethod", ""), ""},
		"no serialize type":         {"POST", "/Arith", args, with("Mul", "X-RPCX-SerializeType", ""), ""},
		"a wrong serialize type":    {"POST", "/Arith", args, with("Mul", "X-RPCX-SerializeType", "json"), ""},
		"a wrong compress type":     {"POST", "/Arith", args, with("Mul", "X-RPCX-CompressType", "gzip"), ""},
		"a wrong ID":                {"POST", "/Arith", args, with("Mul", "X-RPCX-MessageID", "-1"), ""},
		"wrong metadata":            {"POST", "/Arith", args, with("Mul", "X-RPCX-Meta", "%zz"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			want, got := ask(t, theirs.Addr, test.verb, test.path, test.body, test.headers), ask(t, ours.addr, test.verb, test.path, test.body, test.headers)
			if test.text != "" {
				const text = "X-Rpcx-Errormessage"
				if !strings.Contains(got.headers[text], test.text) || want.headers[text] == "" {
					t.Errorf("got the error %q, want %q; rpcx has %q", got.headers[text], test.text, want.headers[text])
				}
				delete(got.headers, text)
				delete(want.headers, text)
			}
			if test.verb == "DELETE" { // the body is for people
				want.body, got.body = "", ""
			}
			if got.status != want.status || got.body != want.body || !maps.Equal(got.headers, want.headers) {
				t.Errorf("got %d %.100q %q\nwant %d %.100q %q", got.status, got.body, got.headers, want.status, want.body, want.headers)
			}
		})
	}
}

// A yodel server answers JSON-RPC with the header of rpcx. It keeps the specification where rpcx
// does not.
func TestGatewayJSONRPC(t *testing.T) {
	theirs, ours := startServer(t, roleGateway, ""), serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{})
	headers := map[string]string{"X-JSONRPC-2.0": "true", "X-RPCX-Meta": url.Values{"k": {"v"}}.Encode()}
	for _, test := range []struct{ request, same, own string }{ // same as rpcx, or yodel's own
		{`{"jsonrpc":"2.0","method":"Arith.Mul","params":{"A":2,"B":3},"id":1}`, `{"jsonrpc":"2.0","result":{"C":6},"id":1}`, ""},
		{`{"jsonrpc":"2.0","method":"Arith.Mul","params":{"A":2,"B":3},"id":"x"}`, `{"jsonrpc":"2.0","result":{"C":6},"id":"x"}`, ""},
		{`{"jsonrpc":"2.0","method":"Arith.Fail","params":{},"id":1}`, "", `"code":-32002,"message":"boom"`},
		{`{"jsonrpc":"2.0","method":"Arith.Nope","params":{},"id":1}`, "", `"code":-32601`},
		{`{"jsonrpc":"2.0","method":"Mul","params":{},"id":1}`, "", `"code":-32601`},
		{`{"jsonrpc":"2.0","method":"Arith.Note","params":{"A":5}}`, "", ""},
		{`{`, "", `"code":-32700`},
		{`[{"jsonrpc":"2.0","method":"Arith.Mul","params":{"A":2,"B":3},"id":1}]`, "", `"result":{"C":6}}]`},
	} {
		got := ask(t, ours.addr, "POST", "/any/path", test.request, headers)
		if test.same != "" {
			if want := ask(t, theirs.Addr, "POST", "/any/path", test.request, headers); !sameJSON(t, got.body, want.body) || !sameJSON(t, got.body, test.same) {
				t.Errorf("%s: got %s, want %s", test.request, got.body, want.body)
			}
		} else if !strings.Contains(got.body, test.own) || test.own == "" && got.body != "" {
			t.Errorf("%s: got %s, want %s", test.request, got.body, test.own)
		}
	}
	select {
	case n := <-ours.noted:
		if n != 5 {
			t.Errorf("the notification had %d", n)
		}
	case <-time.After(20 * time.Second):
		t.Error("the notification was not executed")
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	var both [2]map[string]any
	for i, text := range []string{a, b} {
		if err := json.Unmarshal([]byte(text), &both[i]); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	return fmt.Sprint(both[0]) == fmt.Sprint(both[1]) && slices.Equal(slices.Sorted(maps.Keys(both[0])), slices.Sorted(maps.Keys(both[1])))
}
