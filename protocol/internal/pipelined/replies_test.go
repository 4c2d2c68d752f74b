// SPDX-License-Identifier: Apache-2.0

package pipelined_test

import (
	"context"
	"errors"
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

// serve serves one connection with a protocol, and returns what the client receives.
func serve(t *testing.T, o yodel.ServerOptions, serve func(*yodel.Session) error, write func(c net.Conn, b []byte) (int, error)) []byte {
	t.Helper()
	o.Logger, o.Protocols = slog.New(slog.DiscardHandler), []yodel.Protocol{protocol{serve}}
	s := yodel.NewServer(&o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, writtenListener{l, write}) }()
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
	got, err := io.ReadAll(c)
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		t.Error("the connection does not end")
	}
	return got
}

// A writtenListener accepts connections that are written by write.
type writtenListener struct {
	net.Listener
	write func(c net.Conn, b []byte) (int, error)
}

func (l writtenListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return writtenConn{c, l.write}, err
}

type writtenConn struct {
	net.Conn
	write func(c net.Conn, b []byte) (int, error)
}

func (c writtenConn) Write(b []byte) (int, error) { return c.write(c.Conn, b) }

// A panic in the Write of a connection ends the connection. A reply that waits for that write, and
// a later one, do not wait for ever.
func TestPanicInWrite(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	const behind = "behind the first one"
	panicked, queued := make(chan any, 1), make(chan int, 2)
	got := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxUnsent: 10}}, func(s *yodel.Session) error {
		replies := pipelined.NewReplies(s)
		s.Go(func() {
			defer func() { panicked <- recover() }()
			replies.Send([]byte("the first reply"))
		})
		<-began
		replies.Queue([]byte(behind)) // the queue is now longer than MaxUnsent
		s.Go(func() {
			replies.Send([]byte("waits"))
			queued <- replies.Queued()
		})
		close(release)
		_, err := s.Reader.WriteTo(io.Discard) // until the connection is closed
		replies.Send([]byte("late"))
		queued <- replies.Queued()
		return err
	}, func(net.Conn, []byte) (int, error) {
		close(began)
		<-release
		panic("oh no")
	})
	if len(got) > 0 {
		t.Errorf("got %q", got)
	}
	if p := <-panicked; p != nil {
		t.Errorf("the panic has left the connection: %v", p)
	}
	for range 2 {
		if n := <-queued; n != len(behind) {
			t.Errorf("%d bytes are queued after the connection has failed, want %d", n, len(behind))
		}
	}
}

// A protocol that ends a connection after Drain has sent all replies that it has queued.
func TestDrain(t *testing.T) {
	began, release := make(chan struct{}, 10), make(chan struct{})
	got := serve(t, yodel.ServerOptions{}, func(s *yodel.Session) error {
		replies := pipelined.NewReplies(s)
		s.Go(func() { replies.Send([]byte("first, ")) })
		<-began
		replies.Send([]byte("second")) // the goroutine that writes the first reply writes it
		s.Go(func() { close(release) })
		replies.Drain()
		return nil
	}, func(c net.Conn, b []byte) (int, error) {
		began <- struct{}{}
		<-release
		return c.Write(b)
	})
	if string(got) != "first, second" {
		t.Errorf("got %q", got)
	}
}
