// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// A path names a method in one way, so that a proxy that decides by the path decides about the
// method that is called. In gRPC-Web the rules are those of gRPC: see TestMalformedRequests of
// conformance/grpc. Connect and JSON ignore a query, and take a name with dots.
func TestPathsThatNameNoMethod(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		var succeeded atomic.Int64
		s, c := newSite(t, nil, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				err := next(ctx, call)
				if err == nil {
					succeeded.Add(1)
				}
				return err
			}
		}}}), client(t, h2)
		const size yodel.Method[text, text] = "Test.Größe" // such names need escapes
		size.Handle(s.Server, func(_ context.Context, in *text) (*text, error) { return in, nil })
		const message = "\x00\x00\x00\x00\x02{}"
		for _, p := range []struct{ name, method, media, body string }{
			{"gRPC-Web", "/Test/Echo", "application/grpc-web+json", message},
			{"gRPC-Web text", "/Test/Echo", "application/grpc-web-text+json", "AAAAAAJ7fQ=="},
			{"Connect", "/Test/Gather", "application/connect+json", message},
			{"JSON", "/Test/Echo", "application/json", "{}"},
		} {
			web := strings.HasPrefix(p.name, "gRPC")
			changed := func(old, replacement string) string { return strings.Replace(p.method, old, replacement, 1) }
			for _, test := range []struct {
				name, path string
				executes   bool
			}{
				{"path", p.method, true},
				{"escaped slash", changed("t/", "t%2f"), false},
				{"escaped slash in upper case", changed("t/", "t%2F"), false},
				{"escaped letter", changed("T", "%54"), false},
				{"two slashes", "/" + p.method, false},
				{"slash at the end", p.method + "/", false},
				{"dots", "/x/.." + p.method, false},
				{"query", p.method + "?x=1", !web},
				{"empty query", p.method + "?", !web},
				{"dot for the slash", changed("t/", "t."), !web},
				{"needed escapes", "/Test/Gr%C3%B6%C3%9Fe", true},
				{"needed escapes in lower case", "/Test/Gr%c3%b6%c3%9fe", !web},
			} {
				before := succeeded.Load()
				r := s.do(c, "POST", test.path, p.body, "Content-Type", p.media)
				if got := succeeded.Load() > before; got != test.executes {
					t.Errorf("%s, %s: executed is %v: %d %q", p.name, test.name, got, r.StatusCode, r.body)
				}
			}
		}
	})
}
