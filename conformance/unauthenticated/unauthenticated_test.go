// SPDX-License-Identifier: Apache-2.0

package unauthenticated_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// isUnauthenticated reports whether an answer is the error of auth.Check.
func isUnauthenticated(answer string) bool { return strings.Contains(answer, "the call has no token") }

// A server answers callers without a token in the same way for each of its methods and for one that
// it does not have, whatever the request is. It decompresses and decodes nothing.
func TestNothingIsDecodedBeforeTheMiddleware(t *testing.T) {
	count := new(counter)
	addr, _ := serve(t, options(count, true))
	packed := bomb()
	for _, w := range wires() {
		t.Run(w.name, func(t *testing.T) {
			wrong, several := cmp.Or(w.wrong, wrongJSON), cmp.Or(w.several, severalJSON)
			ask := func(request, body string, packed bool) {
				first := ""
				for _, method := range methods {
					answer := strings.ReplaceAll(w.send(t, addr, method, body, packed), method, "M")
					answer = strings.ReplaceAll(answer, strings.Replace(method, ".", "/", 1), "M")
					answer = strings.ReplaceAll(answer, method[2:], "M") // of protocols that name service and method by themselves
					if !isUnauthenticated(answer) {
						t.Errorf("%s to %s: got %.300s, want that the caller is not authenticated", request, method, answer)
					}
					if first == "" {
						first = answer
					} else if answer != first {
						t.Errorf("%s to %s: got %.500s\nunlike that to %s: %.500s", request, method, answer, methods[0], first)
					}
				}
			}
			ask("wrong bytes", wrong, false)
			ask("several values", several, false)
			if w.packs {
				ask("a bomb", packed, true)
			}
			if n := count.total(); n != 0 {
				t.Errorf("the server has decompressed %d bodies and decoded %d", count.decompressed.Swap(0), count.decoded.Swap(0))
			}
		})
	}
}

// The same requests reach the codec and the compressor of a server without authorization. Otherwise
// the test above could not fail.
func TestRequestsReachTheCodecWithoutMiddleware(t *testing.T) {
	count := new(counter)
	addr, _ := serve(t, options(count, false))
	packed := bomb()
	for _, w := range wires() {
		t.Run(w.name, func(t *testing.T) {
			reads := func(request, method, body string, packed bool, decompresses bool) {
				count.decompressed.Store(0)
				count.decoded.Store(0)
				answer := w.send(t, addr, method, body, packed)
				if isUnauthenticated(answer) {
					t.Errorf("%s: got %.300s", request, answer)
				}
				if decompresses && count.decompressed.Load() == 0 || !decompresses && count.decoded.Load() == 0 {
					t.Errorf("%s: the server has decompressed %d bodies and decoded %d; the answer is %.300s", request, count.decompressed.Load(), count.decoded.Load(), answer)
				}
			}
			switch w.name {
			case "GET without a message", "POST of a form", "Dubbo, damaged": // they are no requests with a message
				return
			case "Connect GET", "EventSource, GET":
				reads("wrong bytes", string(read), wrongJSON, false, false)
				reads("a bomb", string(read), packed, true, true)
				return
			case "route by GET":
				w.send(t, addr, string(read), "x", false)
				return
			}
			if !strings.HasPrefix(w.name, "JSON-RPC") && !strings.HasPrefix(w.name, "route") {
				reads("wrong bytes", string(one), cmp.Or(w.wrong, wrongJSON), false, false)
			}
			if w.packs {
				reads("a bomb", string(one), packed, true, true)
			}
			if name := w.name; name == "JSON" || strings.HasPrefix(name, "JSON-RPC") || strings.HasPrefix(name, "Thrift, f") || name == "Dubbo" {
				reads("several values", several, cmp.Or(w.several, severalJSON), false, false)
			}
		})
	}
}

// Calls within the process, and those that a server makes to a client, are no exception.
func TestCallsWithoutConnectionsOfTheirOwn(t *testing.T) {
	for _, closed := range []bool{true, false} {
		t.Run(fmt.Sprintf("closed=%v", closed), func(t *testing.T) {
			mine, theirs := new(counter), new(counter)
			inside := yodel.NewServer(options(mine, closed))
			register(t, inside)
			peers := make(chan *yodel.Peer, 1)
			o := options(theirs, false)
			o.Protocols = nil
			o.Connect = func(_ context.Context, p *yodel.Peer) error {
				peers <- p
				return nil
			}
			addr, _ := serve(t, o)
			o2 := options(theirs, closed)
			o2.Protocols = nil
			callee := yodel.NewServer(o2)
			register(t, callee)
			c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Server: callee})
			defer c.Close()
			if _, err := one.Call(t.Context(), c, new(message)); err != nil {
				t.Fatal(err)
			}
			theirs.decoded.Store(0)
			for name, to := range map[string]yodel.Caller{"within the process": inside, "to a client": <-peers} {
				first := ""
				for _, method := range methods {
					err := to.Do(t.Context(), &yodel.Call{Method: method, Args: &yodel.Encoded{Body: []byte(wrongJSON)}, Codec: countedCodec{yodel.JSON, mine}})
					answer := strings.ReplaceAll(fmt.Sprint(err), method, "M")
					switch {
					case closed && !errors.Is(err, yodel.Unauthenticated), !closed && err == nil:
						t.Errorf("%s, %s: got %v", name, method, err)
					case closed && first != "" && answer != first:
						t.Errorf("%s, %s: got %s, unlike %s", name, method, answer, first)
					}
					first = answer
				}
			}
			for name, count := range map[string]*counter{"within the process": mine, "to a client": theirs} {
				if n := count.total(); closed != (n == 0) {
					t.Errorf("%s: %d bodies were decoded", name, n)
				}
			}
		})
	}
}
