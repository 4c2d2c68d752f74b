// SPDX-License-Identifier: Apache-2.0

package dialled_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// A link is a Link that sends nothing by itself.
type link struct {
	nc            net.Conn
	closing, done chan struct{}
	once          sync.Once
	err           error
	full          bool
	closed        []bool // how Close was called
}

func newLink(nc net.Conn) *link {
	return &link{nc: nc, closing: make(chan struct{}), done: make(chan struct{})}
}

func (l *link) Closing() <-chan struct{} { return l.closing }
func (l *link) Done() <-chan struct{}    { return l.done }
func (l *link) Err() error               { return l.err }
func (l *link) Full() bool               { return l.full }

func (l *link) Close(whenIdle bool) {
	l.closed = append(l.closed, whenIdle)
	if !whenIdle {
		l.end(nil)
	}
}

func (l *link) end(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.done)
	})
}

var (
	errSaid     = errors.New("the server says why")
	errPanicked = errors.New("it panicked")
)

func said(err error) bool { return errors.Is(err, errSaid) }

func newGuard() *guard.Guard {
	return guard.New(slog.New(slog.DiscardHandler), func(string) error { return errPanicked })
}

// join returns a connection in the protocol "fake", and the server's side of it.
func join(t *testing.T, o *owner) (c *dialled.Conn, l *link, there net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	c = &dialled.Conn{Owner: o}
	err := c.Join(t.Context(), here, newGuard(), "fake", func(nc net.Conn) (dialled.Link, error) {
		l = newLink(nc)
		return l, nil
	}, said)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = here.Close()
		_ = there.Close()
	})
	return c, l, there
}

// loaded returns a connection with open calls. It is full if their number is negative.
func loaded(t *testing.T, open int64) *dialled.Conn {
	t.Helper()
	c, l, _ := join(t, new(owner))
	c.Foreign.Open.Store(max(open, -open))
	l.full = open < 0
	return c
}

func TestAConnectionOfALink(t *testing.T) {
	broke := errors.New("reset")
	for _, test := range []struct {
		name  string
		act   func(c *dialled.Conn, l *link)
		why   error // of its End
		ended error
	}{
		{"the server ends it", func(_ *dialled.Conn, l *link) { l.end(io.EOF) }, io.EOF, mux.ErrDrained},
		{"the Link ends it", func(_ *dialled.Conn, l *link) { l.end(nil) }, mux.ErrDrained, mux.ErrDrained},
		{"it breaks", func(_ *dialled.Conn, l *link) { l.end(broke) }, broke, broke},
		{"the client closes it", func(c *dialled.Conn, _ *link) { c.Close() }, mux.ErrDrained, mux.ErrClosed},
		{"the client closes it later", func(c *dialled.Conn, l *link) {
			c.CloseWhenIdle()
			l.end(broke)
		}, broke, mux.ErrClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := new(owner)
				c, l, _ := join(t, o)
				go c.Watch()
				o.is(t, "connected")
				c.Foreign.Open.Store(3)
				l.full = true
				if open, full := c.Load(); open != 3 || !full || !c.Usable() || c.Stats().Open != 3 || !c.Stats().Full {
					t.Errorf("%d calls are open, full: %v, usable: %v", open, full, c.Usable())
				}
				c.Foreign.Replied.Store(true)
				test.act(c, l)
				<-c.Ended()
				o.is(t, "connected", "unusable", "ended: "+test.ended.Error())
				if end := c.End(); c.Usable() || !errors.Is(end.Err, test.why) || !end.Worked || !end.Broke {
					t.Errorf("its end is %+v", end)
				}
			})
		})
	}
}

func TestALinkThatIsClosingTakesNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(owner)
		c, l, _ := join(t, o)
		go c.Watch()
		close(l.closing)
		o.is(t, "connected", "unusable")
		if c.Usable() {
			t.Error("it is usable")
		}
		l.end(nil)
		o.is(t, "connected", "unusable", "ended: "+mux.ErrDrained.Error())
	})
}

// The first bytes of a server may say that it speaks another protocol than the Link.
func TestAServerOfAnotherProtocolHasExecutedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, there := join(t, new(owner))
		failed := errors.New("it cannot be read")
		if err := c.Foreign.Unserved(failed); !errors.Is(err, failed) {
			t.Errorf("got %v, want the error of the call", err)
		}
		speak(t, l.nc, there)
		var lost *mux.CallError
		if err := c.Foreign.Unserved(failed); !errors.As(err, &lost) || !lost.NotProcessed {
			t.Errorf("got %v, want that the call was not executed", err)
		}
		l.end(failed)
		c.Watch()
		var foreign *firstbytes.MismatchError
		if end := c.End(); !errors.As(end.Err, &foreign) || end.Broke {
			t.Errorf("its end is %+v, want the other protocol", end)
		}
	})
}

// speak makes the client send a request, and the server answer in HTTP.
func speak(t *testing.T, nc, there net.Conn) {
	t.Helper()
	go func() {
		b := make([]byte, 10)
		if _, err := there.Read(b); err == nil {
			_, _ = there.Write([]byte("HTTP/1.1 400 Bad Request\r\n"))
		}
	}()
	if _, err := nc.Write([]byte("\x08request")); err != nil {
		t.Error(err)
	}
	if _, err := nc.Read(make([]byte, 100)); err != nil {
		t.Error(err)
	}
}

func TestJoinFails(t *testing.T) {
	failed := errors.New("no handshake")
	for _, test := range []struct {
		name    string
		connect func(t *testing.T, ctx context.Context, nc, there net.Conn) (dialled.Link, error)
		want    string
	}{
		{"the Wire fails", func(*testing.T, context.Context, net.Conn, net.Conn) (dialled.Link, error) {
			return nil, failed
		}, failed.Error()},
		{"the server says why", func(t *testing.T, _ context.Context, nc, there net.Conn) (dialled.Link, error) {
			speak(t, nc, there)
			return nil, errSaid
		}, errSaid.Error()},
		{"the server speaks another protocol", func(t *testing.T, _ context.Context, nc, there net.Conn) (dialled.Link, error) {
			speak(t, nc, there)
			return nil, failed
		}, `the server does not speak fake: it answered "HTTP/1.1 400 Bad Request"`},
		{"the time has passed", func(_ *testing.T, ctx context.Context, _, _ net.Conn) (dialled.Link, error) {
			<-ctx.Done()
			return nil, failed
		}, mux.ErrHandshake.Error()},
		{"there is no Link", func(*testing.T, context.Context, net.Conn, net.Conn) (dialled.Link, error) {
			return nil, nil
		}, errPanicked.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer there.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				o := new(owner)
				c := &dialled.Conn{Owner: o}
				err := c.Join(ctx, here, newGuard(), "fake", func(nc net.Conn) (dialled.Link, error) {
					return test.connect(t, ctx, nc, there)
				}, said)
				if err == nil || err.Error() != test.want {
					t.Errorf("got %v, want %s", err, test.want)
				}
				o.is(t)
				if _, err := here.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("the connection is open: %v", err)
				}
			})
		})
	}
}
