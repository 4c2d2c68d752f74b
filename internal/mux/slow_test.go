// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// A throttle is a proxy between the two ends of a connection. Each direction passes so many bytes
// and then pauses.
type throttle struct {
	bytes   int
	pause   time.Duration
	stopped atomic.Bool
}

// throttled returns the two ends of a connection over the loopback with a proxy in between.
func throttled(t *testing.T, p *throttle) (client, server net.Conn) {
	t.Helper()
	client, a := narrowPair(t)
	b, server := narrowPair(t)
	go p.pass(a, b)
	go p.pass(b, a)
	return client, server
}

// narrowPair is tcpPair with small segments and a small buffer on the receiving side, as a real
// line has: over the loopback a segment has 64 KiB, and a receiver whose buffer was full makes the
// sender wait for as much.
func narrowPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	narrow := func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 1000)
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 16<<10)
		})
	}
	l, err := (&net.ListenConfig{Control: narrow}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = (&net.Dialer{Control: narrow}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

func (p *throttle) pass(from, to net.Conn) {
	defer to.Close()
	buf := make([]byte, p.bytes)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		<-time.After(p.pause)
		if p.stopped.Load() {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// A wrapped connection hides its socket, and says what it wraps, as one of TLS does.
type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

// A hidden connection does not even say that.
type hidden struct{ net.Conn }

// A connection that is slow lives as long as bytes move, however long a message takes.
func TestASlowConnectionThatMovesLives(t *testing.T) {
	t.Parallel()
	// at 128 KiB a second: 3 s, 12 times the silence that is asked about
	const keepAlive, size = 250 * time.Millisecond, 384 << 10
	plain := func(nc net.Conn) net.Conn { return nc }
	for _, test := range []struct {
		name             string
		client, server   func(net.Conn) net.Conn
		patient          bool // the receiver never pings: what the sender's system says must do
		request, replied int
	}{
		{name: "a large request", client: plain, server: plain, request: size},
		{name: "a large reply", client: plain, server: plain, replied: size},
		{name: "wrapped", client: func(nc net.Conn) net.Conn { return wrapped{nc} }, server: func(nc net.Conn) net.Conn { return wrapped{nc} }, request: size},
		{name: "a receiver that says nothing", client: plain, server: plain, request: size, patient: true},
		{name: "hidden", client: func(nc net.Conn) net.Conn { return hidden{nc} }, server: func(nc net.Conn) net.Conn { return hidden{nc} }, request: size},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.patient && runtime.GOOS != "linux" {
				t.Skip("the system does not say what the peer has acknowledged")
			}
			a, b := throttled(t, &throttle{bytes: 4 << 10, pause: 32 * time.Millisecond})
			reply := filled('r', test.replied)
			s := &setup{limits: quietLimits(keepAlive, 10*time.Second), serves: map[string]*handler{"echo": {serve: func(r *mux.Request) {
				r.Reply.Body = reply
			}}}}
			if test.patient {
				s.server.Limits = quietLimits(time.Hour, 10*time.Second)
			}
			c, srv := s.over(t, test.client(a), test.server(b))
			began := time.Now()
			got := within(t, "the call ends", startCall(c, context.Background(), &mux.Out{Method: echo, Body: filled('x', test.request)}))
			if took := time.Since(began); got.err != nil || !bytes.Equal([]byte(got.reply), reply) || took < 6*keepAlive {
				t.Errorf("after %v: got %d bytes, %v; client %v, server %v", took, len(got.reply), got.err, c.Err(), srv.Err())
			}
			if c.Err() != nil || srv.Err() != nil {
				t.Errorf("the connection has ended: client %v, server %v", c.Err(), srv.Err())
			}
		})
	}
}

// A connection on which nothing moves any more is found out in time, also in the middle of a large
// message.
func TestASlowConnectionThatStopsIsFoundOut(t *testing.T) {
	const keepAlive, size = 250 * time.Millisecond, 4 << 20
	p := &throttle{bytes: 4 << 10, pause: 32 * time.Millisecond}
	a, b := throttled(t, p)
	s := &setup{limits: quietLimits(keepAlive, 10*time.Second), serves: map[string]*handler{"echo": {serve: answerEcho}}}
	c, srv := s.over(t, a, b)
	ended := startCall(c, context.Background(), &mux.Out{Method: echo, Body: filled('x', size)})
	eventually(t, "the message is on its way", func() bool { return srv.Counters().BytesIn > 20<<10 })
	p.stopped.Store(true)
	// The proxy still takes what comes, and passes nothing on: the client sees that its bytes move,
	// and hears nothing.
	began := time.Now()
	within(t, "the server notices", srv.Ended())
	if took := time.Since(began); took > 10*keepAlive || !errors.Is(srv.Err(), mux.ErrDead) {
		t.Errorf("the server noticed after %v: %v", took, srv.Err())
	}
	_ = a.Close()
	within(t, "the call ends", ended)
}

// A peer whose process stands still acknowledges only until its buffer is full, and is found out.
func TestAPeerThatStandsStillIsFoundOut(t *testing.T) {
	const keepAlive = 250 * time.Millisecond
	client, server := tcpPair(t)
	_ = server.(*net.TCPConn).SetReadBuffer(8 << 10)
	_, _ = server.Write(hello(nil))
	c := mux.New(client, nil, true, new(setup).config(t, mux.Config{Limits: quietLimits(keepAlive, time.Second)}, nil))
	t.Cleanup(c.Close)
	began := time.Now()
	ended := startCall(c, context.Background(), &mux.Out{Method: echo, Body: filled('x', 4<<20)})
	if got := within(t, "the call ends", ended); !errors.Is(got.err, mux.ErrDead) {
		t.Errorf("the call ended with %v", got.err)
	}
	if took := time.Since(began); took > 20*keepAlive {
		t.Errorf("the peer was found out after %v, want at most %v", took, 20*keepAlive)
	}
}
