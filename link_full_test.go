// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A singleWire makes links that carry one call at a time.
type singleWire struct {
	began   chan struct{}
	release chan struct{}
	refuse  atomic.Bool // no further connections
}

func (*singleWire) Name() string { return "single" }

func (w *singleWire) Connect(_ context.Context, nc net.Conn, _ *yodel.Endpoint) (yodel.Link, error) {
	if w.refuse.Load() {
		return nil, errors.New("no more connections")
	}
	return &singleLink{wire: w, conn: nc, turn: make(chan struct{}, 1), done: make(chan struct{})}, nil
}

type singleLink struct {
	wire *singleWire
	conn net.Conn
	turn chan struct{}
	done chan struct{}
	once sync.Once
}

func (l *singleLink) Do(context.Context, *yodel.Call) error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.wire.began <- struct{}{}
	<-l.wire.release
	return nil
}

func (l *singleLink) Full() bool               { return len(l.turn) > 0 }
func (l *singleLink) Closing() <-chan struct{} { return l.done }
func (l *singleLink) Done() <-chan struct{}    { return l.done }
func (l *singleLink) Err() error               { return net.ErrClosed }

func (l *singleLink) Close(bool) {
	l.once.Do(func() {
		_ = l.conn.Close() // nobody reads it
		close(l.done)
	})
}

// A call that would wait on a full link gets a connection of its own, up to ConnsPerEndpoint. If
// that connection cannot be made, the call waits.
func TestFullLinks(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, test := range []struct {
		conns  int
		refuse bool
		want   int // calls at the same time
	}{{1, false, 1}, {2, false, 2}, {3, false, 3}, {3, true, 1}} {
		w := &singleWire{began: make(chan struct{}, 3), release: make(chan struct{})}
		c := yodel.NewClient(discovery.Static("single://"+listener.Addr().String()), &yodel.ClientOptions{Wires: []yodel.Wire{w}, ConnsPerEndpoint: test.conns})
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				if err := c.Call(t.Context(), "x", new(1), nil); err != nil {
					t.Errorf("%+v, call %d: %v", test, i, err)
				}
			})
			if i < test.want {
				<-w.began
			}
			w.refuse.Store(test.refuse)
		}
		select {
		case <-w.began:
			t.Errorf("%+v: more calls run at the same time", test)
		case <-time.After(20 * time.Millisecond): // a correct client passes in any case
		}
		close(w.release)
		all.Wait()
		c.Close()
	}
}

// A socketWire changes the settings of sockets.
type socketWire struct {
	singleWire
	sockets chan net.Conn
}

func (w *socketWire) Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	socket, ok := nc.(interface{ NetConn() net.Conn })
	if !ok {
		return nil, errors.New("the connection hides its socket")
	}
	w.sockets <- socket.NetConn()
	return w.singleWire.Connect(ctx, nc, ep)
}

// A Wire reaches the socket of its connection, for example to set its keep-alive.
func TestAWireReachesItsSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	w := &socketWire{singleWire{began: make(chan struct{}, 1), release: make(chan struct{})}, make(chan net.Conn, 1)}
	close(w.release)
	c := newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{w}}, "single://"+l.Addr().String())
	must(t, c.Call(t.Context(), "Test.Echo", nil, nil))
	tcp, ok := (<-w.sockets).(*net.TCPConn)
	if !ok {
		t.Fatal("it is no *net.TCPConn")
	}
	must(t, tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Minute}))
}
