// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// This file has the server, the client and the connections with which TestWire tries a rule.

// A wireTrial is a test of one rule with its own server and its own client.
type wireTrial struct {
	Wire
	servedTrial
	server *yodel.Server
	client *yodel.Client

	before atomic.Pointer[func(*trialLink)] // runs once, before the next Do
	conn   atomic.Pointer[trialConn]        // the last one
	link   atomic.Pointer[trialLink]        // the last one
}

// await waits until ch is closed, or the time for the check is over.
func (t *wireTrial) await(ch <-chan struct{}) {
	select {
	case <-ch:
	case <-t.ctx.Done():
	}
}

// start starts the server and the client.
func (t *wireTrial) start(limits yodel.Limits) (stop func(), err error) {
	silent := slog.New(slog.DiscardHandler)
	t.server = yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{t.Codec}, Protocols: []yodel.Protocol{t.Protocol}, Logger: silent})
	ctx, cancel := context.WithCancel(context.Background())
	addr, served, err := t.serve(ctx, t.server, map[string]func(context.Context, *string) (*string, error){
		"Test.Echo": func(_ context.Context, in *string) (*string, error) { return in, nil },
		"Test.Fail": func(context.Context, *string) (*string, error) {
			return nil, yodel.Errorf(yodel.Unknown, "no such thing")
		},
		"Test.Wait": t.wait,
		"Test.Large": func(_ context.Context, size *string) (*string, error) {
			n, err := strconv.Atoi(*size)
			return new(strings.Repeat("x", n)), err
		},
	})
	if err != nil {
		cancel()
		return nil, err
	}
	t.client = yodel.NewClient(discovery.Static(t.Name()+"://"+addr), &yodel.ClientOptions{
		Wires: []yodel.Wire{trialWire{t}}, Codec: t.Codec, Limits: limits, Transport: trialTransport{t}, Logger: silent,
	})
	return func() {
		t.client.Close()
		if c := t.conn.Load(); c != nil {
			_ = c.Close() // it may be closed already
		}
		ended, stop := context.WithCancel(context.Background())
		stop() // nothing waits for a Wire that does not end its connection
		_ = t.server.Shutdown(ended)
		cancel()
		<-served
	}, nil
}

// A trialCall is a call and its attempts.
type trialCall struct {
	reply string
	ended chan error

	mu       sync.Mutex
	attempts []error // what Do has returned
}

// attempt returns the outcome of the first attempt, or an error if there was none.
func (c *trialCall) attempt() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.attempts) == 0 {
		return errors.New("Do was not called")
	}
	return c.attempts[0]
}

type trialKey struct{}

// begin begins a call on another goroutine.
func (t *wireTrial) begin(ctx context.Context, call *yodel.Call) *trialCall {
	c := &trialCall{ended: make(chan error, 1)}
	call.Reply = &c.reply
	go func() { c.ended <- t.client.Do(context.WithValue(ctx, trialKey{}, c), call) }()
	return c
}

// call makes a call, and returns its outcome.
func (t *wireTrial) call(method, in string) (c *trialCall, err error) {
	c = t.begin(t.ctx, &yodel.Call{Method: method, Args: &in})
	return c, <-c.ended
}

// works checks that calls succeed.
func (t *wireTrial) works() error {
	t.doingf("a call of Test.Echo")
	c, err := t.call("Test.Echo", "hello")
	if err == nil && c.reply != "hello" {
		err = fmt.Errorf("the reply is %q", c.reply)
	}
	if err != nil {
		return fmt.Errorf("a call of Test.Echo: %w", err)
	}
	return nil
}

// A trialWire passes the Links of a Wire to the trial.
type trialWire struct{ trial *wireTrial }

func (w trialWire) Name() string { return w.trial.Name() }

func (w trialWire) Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	conn := w.trial.conn.Load() // the client has one endpoint with one connection
	link, err := w.trial.Connect(ctx, nc, ep)
	if err != nil {
		return nil, err
	}
	l := &trialLink{link, w.trial, conn}
	w.trial.link.Store(l)
	return l, nil
}

// A trialLink records what Do returns.
type trialLink struct {
	yodel.Link
	trial *wireTrial
	conn  *trialConn
}

func (l *trialLink) Do(ctx context.Context, call *yodel.Call) error {
	if f := l.trial.before.Swap(nil); f != nil {
		(*f)(l)
	}
	err := l.Link.Do(ctx, call)
	if c, ok := ctx.Value(trialKey{}).(*trialCall); ok {
		c.mu.Lock()
		c.attempts = append(c.attempts, err)
		c.mu.Unlock()
	}
	return err
}

// Full reports whether another call would have to wait: see yodel.Link.
func (l *trialLink) Full() bool {
	own, ok := l.Link.(interface{ Full() bool })
	return ok && own.Full()
}

// Codec returns the codec that decodes the reply: see yodel.Link.
func (l *trialLink) Codec(call *yodel.Call) yodel.Codec {
	if own, ok := l.Link.(interface {
		Codec(call *yodel.Call) yodel.Codec
	}); ok {
		return own.Codec(call)
	}
	return call.Encoding()
}

// A trialTransport makes connections that the checks can cut.
type trialTransport struct{ trial *wireTrial }

func (t trialTransport) Dial(ctx context.Context, addr string) (net.Conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &trialConn{Conn: nc, open: make(chan struct{}), closed: make(chan struct{})}
	c.reads.Store(math.MaxInt64)
	c.writes.Store(math.MaxInt64)
	t.trial.conn.Store(c)
	return c, nil
}

func (trialTransport) Listen(string) (net.Listener, error) { return nil, errors.ErrUnsupported }

// A trialConn is a connection of the client that a check can cut or stop.
type trialConn struct {
	net.Conn
	reads  atomic.Int64 // how many more bytes Read returns
	cut    atomic.Bool  // whether the connection ends after them; otherwise it waits for open
	writes atomic.Int64 // after how many more bytes a Write ends the connection

	open   chan struct{} // closed to let Read go on
	closed chan struct{}
	once   sync.Once
}

func (c *trialConn) Read(b []byte) (int, error) {
	left := c.reads.Load()
	if left <= 0 {
		if c.cut.Load() {
			_ = c.Close() // the server learns it too
			return 0, io.EOF
		}
		select {
		case <-c.open:
			left = math.MaxInt64
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
	c.reads.Add(-int64(n))
	return n, err
}

func (c *trialConn) Write(b []byte) (int, error) {
	left := c.writes.Add(-int64(len(b)))
	if left >= 0 {
		return c.Conn.Write(b)
	}
	n, _ := c.Conn.Write(b[:max(int64(len(b))+left, 0)])
	_ = c.Close() // the rest is lost
	return n, io.ErrClosedPipe
}

func (c *trialConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
