// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/protocol/grpc"
)

// The callers of a connection are told apart by their User-Agent, and clients of yodel send their
// name in it.
func TestCallersAreCountedByName(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s := newSite(t, nil, yodel.ServerOptions{Diagnostics: true})
		c := client(t, h2)
		for _, agent := range []string{"checkout/1.2 go", "stock", "checkout", "curl/8.0"} {
			s.post(c, "/Test/Echo", `{"text":"a"}`, "User-Agent", agent).is(t, 200, `{"text":"a"}`)
		}
		called := yodel.NewClient(discovery.Static("grpc://"+s.addr), &yodel.ClientOptions{Wires: []yodel.Wire{grpc.Wire}, Name: "pricing"})
		defer called.Close()
		must(t, called.Call(t.Context(), string(echo), &map[string]string{"text": "a"}, nil))
		calls := func() map[string]uint64 {
			n := make(map[string]uint64)
			for _, of := range s.Live(&introspect.LiveQuery{Span: time.Hour, Method: string(echo)}).Series {
				for _, calls := range of.Calls {
					n[of.Peer] += calls
				}
			}
			return n
		}
		eventually(t, "all calls have ended", func() bool {
			n := calls()
			return n["checkout"] == 2 && n["stock"] == 1 && n["curl"] == 1 && n["pricing"] == 1 && len(n) == 4
		})
	})
}
