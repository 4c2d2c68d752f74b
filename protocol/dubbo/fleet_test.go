// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
)

// A client calls one server in the protocol dubbo, and another one in yodel's own protocol. No call
// fails when the first one shuts down.
func TestMixedFleet(t *testing.T) {
	t.Attr("rerun", "never")
	const method = "com.acme.Arith.whoami"
	var answers [2]atomic.Int64
	servers := make([]*served, len(answers))
	for i := range servers {
		servers[i] = serve(t, yodel.ServerOptions{})
		err := servers[i].Handle(method, func(_ context.Context, n *int32) (*int32, error) {
			answers[i].Add(1)
			return n, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c := yodel.NewClient(discovery.Static("dubbo://"+servers[0].addr, servers[1].addr), &yodel.ClientOptions{
		Codec: codec.Codec, Wires: []yodel.Wire{Wire(codec.Codec, nil)}, Middleware: []yodel.Middleware{retry.Times(3)}, Timeout: 20 * time.Second,
	})
	defer c.Close()
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	call := func() {
		t.Helper()
		if err := c.Call(t.Context(), method, new(int32), new(int32)); err != nil {
			t.Fatal(err)
		}
	}
	late := time.After(30 * time.Second)
	for answers[0].Load() == 0 || answers[1].Load() == 0 {
		call()
		select {
		case <-late:
			t.Fatalf("the servers answered %d and %d calls", answers[0].Load(), answers[1].Load())
		default:
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- servers[0].stop() }()
	for running := true; running; {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
			call()
		}
	}
	before := answers[1].Load()
	for range 20 {
		call()
	}
	if n := answers[1].Load() - before; n != 20 {
		t.Errorf("the yodel server answered %d of 20 calls", n)
	}
}

// A client survives any bytes.
func FuzzAnswers(f *testing.F) {
	answer := head{flags: hessian2, status: statusOK, number: 1}
	f.Add(append(answer.append(nil, 1), "\x92"...))
	f.Add(append(answer.append(nil, 3), "\x91\x95N"...))
	f.Add(unhex(f, "dabb e2 00 0000000000000009 00000001 4e"))
	f.Add(unhex(f, "dabb 02 14 0000000000000001 7fffffff 91"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = l.Close() // no second attempt
			_, _ = conn.Read(make([]byte, 1<<10))
			_, _ = conn.Write(b)
			_ = conn.Close()
		}()
		c := calling(t, l.Addr().String(), nil, yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 64 << 10}})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err = c.Call(ctx, "com.acme.Arith.move", &Point{}, new(Point))
		if ctx.Err() != nil {
			t.Errorf("the call waits after the end of the connection: %v", err)
		}
		c.Close()
		_ = l.Close()
		<-ended
	})
}
