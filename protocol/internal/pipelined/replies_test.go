// SPDX-License-Identifier: Apache-2.0

package pipelined_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// A protocol serves each connection with serve.
type protocol struct{ serve func(*yodel.Session) error }

func (protocol) Name() string                                      { return "test" }
func (protocol) Match([]byte) (ok, more bool)                      { return true, false }
func (p protocol) Serve(_ context.Context, s *yodel.Session) error { return p.serve(s) }

// A brokenListener accepts connections whose Write calls write.
type brokenListener struct {
	net.Listener
	write func()
}

func (l brokenListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return brokenConn{c, l.write}, err
}

type brokenConn struct {
	net.Conn
	write func()
}

func (c brokenConn) Write([]byte) (int, error) {
	c.write()
	return 0, nil
}

// A panic in the Write of a connection ends the connection. A reply that waits for that write, and
// a later one, do not wait for ever.
func TestPanicInWrite(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	panicked, queued := make(chan any, 1), make(chan bool, 2)
	s := yodel.NewServer(&yodel.ServerOptions{
		Logger: slog.New(slog.DiscardHandler), Limits: yodel.Limits{MaxUnsent: 10},
		Protocols: []yodel.Protocol{protocol{func(s *yodel.Session) error {
			replies := pipelined.NewReplies(s)
			s.Go(func() {
				defer func() { panicked <- recover() }()
				replies.Send([]byte("the first reply"))
			})
			<-began
			replies.Queue([]byte("behind the first one")) // the queue is now longer than MaxUnsent
			s.Go(func() { queued <- replies.Queue([]byte("waits")) })
			close(release)
			_, err := s.Reader.WriteTo(io.Discard) // until the connection is closed
			queued <- replies.Queue([]byte("late"))
			return err
		}}},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(ctx, brokenListener{l, func() {
			close(began)
			<-release
			panic("oh no")
		}})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err = io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("got %d bytes", n)
	} else if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Error("the connection does not end")
	}
	if p := <-panicked; p != "oh no" {
		t.Errorf("got the panic %v", p)
	}
	for range 2 {
		if <-queued {
			t.Error("a reply was queued after the connection had failed")
		}
	}
}
