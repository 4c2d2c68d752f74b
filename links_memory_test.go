// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/codec/thrift"
	connectrpc "github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	thriftrpc "github.com/yodel-rpc/yodel/protocol/thrift"
)

// A largeText is a message of every protocol.
type largeText struct {
	Text string `json:"text" thrift:"1"`
}

// JavaClassName implements an interface of hessian2.
func (largeText) JavaClassName() string { return "test.Text" }

// A stalling is a proxy that passes the first bytes of a server's replies on each connection, and
// then nothing until it is released.
type stalling struct {
	net.Listener
	passes  int64
	stalled *atomic.Int64 // counts the connections that it has stalled
	release chan struct{}
}

// newStalling returns a proxy to addr.
func newStalling(t testing.TB, addr string, passes int64, stalled *atomic.Int64, release chan struct{}) *stalling {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &stalling{Listener: l, passes: passes, stalled: stalled, release: release}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.pass(near, addr) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return p
}

func (p *stalling) pass(near net.Conn, addr string) {
	defer near.Close()
	far, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer far.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(far, near) // ends with either connection
		far.Close()
	}()
	if _, err := io.CopyN(near, far, p.passes); err == nil {
		p.stalled.Add(1)
		select {
		case <-p.release:
			_, _ = io.Copy(near, far) // as above
		case <-done:
		}
	}
	near.Close()
	<-done
}

// What servers of other protocols make a client hold is within ClientOptions.MaxMemory, as it is
// for servers of yodel: replies that do not come whole take no memory beyond it, and fail their own
// calls only.
func TestRepliesThroughLinksAreCounted(t *testing.T) {
	const endpoints, size, limit = 12, 1 << 20, 6 << 20
	wires := map[string]struct {
		wire     yodel.Wire
		protocol yodel.Protocol
		codec    yodel.Codec
	}{
		"grpc":    {grpc.Wire, http.New(nil), yodel.JSON},
		"connect": {connectrpc.Wire(nil), http.New(nil), yodel.JSON},
		"rpcx":    {rpcx.Wire(yodel.JSON), rpcx.Protocol, yodel.JSON},
		"dubbo":   {dubbo.Wire(hessian2.Codec, nil), dubbo.Protocol, hessian2.Codec},
		"thrift":  {thriftrpc.Wire(thrift.Codec, &thriftrpc.WireOptions{Service: "Test"}), thriftrpc.New(&thriftrpc.Options{Service: "Test"}), thrift.Codec},
		"netrpc":  {netrpc.Wire(gob.Codec), netrpc.Protocol, gob.Codec},
		"jsonrpc": {jsonrpc.Wire(yodel.JSON), jsonrpc.Protocol, yodel.JSON},
	}
	for name, test := range wires {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, &yodel.ServerOptions{Protocols: []yodel.Protocol{test.protocol}, Codecs: []yodel.Codec{test.codec}})
			large := largeText{strings.Repeat("x", size)}
			handle(t, s, "Test.Large", func(*largeText) (*largeText, error) { return &large, nil })
			handle(t, s, "Test.Small", func(in *largeText) (*largeText, error) { return in, nil })
			addr := serve(t, s)
			release := make(chan struct{})
			var stalled atomic.Int64
			var addrs []string
			for range endpoints {
				addrs = append(addrs, test.wire.Name()+"://"+newStalling(t, addr, size-100_000, &stalled, release).Addr().String())
			}
			c := newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{test.wire}, Codec: test.codec, MaxMemory: limit}, addrs...)
			until(t, "all endpoints are connected", func() bool { // then the calls go to all of them
				must(t, c.Call(t.Context(), "Test.Small", &largeText{"a"}, new(largeText)))
				return !slices.ContainsFunc(c.Endpoints(), func(ep *yodel.Endpoint) bool { return !ep.Connected() })
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ends := make(chan error, endpoints)
			for range endpoints {
				go func() {
					var reply largeText
					err := c.Call(ctx, "Test.Large", &largeText{"a"}, &reply)
					if err == nil && len(reply.Text) != size {
						err = errors.New("the reply is not whole")
					}
					ends <- err
				}()
			}
			refused, least := 0, endpoints-limit/size
			if name == "jsonrpc" { // the number of the call may come last, so that the reply must come first
				until(t, "all replies have come in part", func() bool { return stalled.Load() == endpoints })
				least = 0
			}
			for refused < least { // the others hold their part of a reply
				err := <-ends
				var e *yodel.Error
				if !errors.As(err, &e) || e.ID != "YDL3007" || e.Code != yodel.ResourceExhausted || e.NotProcessed {
					t.Fatalf("got %v, want YDL3007", err)
				}
				if refused++; refused == 1 {
					t.Logf("the first error: %v", err)
				}
			}
			close(release)
			for range endpoints - refused {
				var e *yodel.Error
				if err := <-ends; errors.As(err, &e) && e.ID == "YDL3007" {
					refused++
				} else if err != nil {
					t.Errorf("a call that has memory: %v", err)
				}
			}
			// Replies whose sizes come last take memory bit by bit: all may fail.
			if refused == 0 || refused == endpoints && name != "jsonrpc" {
				t.Errorf("%d of %d calls were refused", refused, endpoints)
			}
			// everything was given back
			for range 3 {
				var reply largeText
				if err := c.Call(t.Context(), "Test.Large", &largeText{"a"}, &reply); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			}
		})
	}
}
