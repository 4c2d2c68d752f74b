// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/leak"
)

// This file has the server and the clients with which TestProtocol tries a rule.

// A protocolTrial is a test of one rule with its own server.
type protocolTrial struct {
	Protocol
	*yodel.Server
	servedTrial
	client func(net.Conn) yodel.Caller
	addr   string
	faults atomic.Pointer[string] // the last panic of the protocol's code in the server's log

	observed atomic.Int32
	seen     atomic.Pointer[string] // what the middleware saw last
	kinds    sync.Map               // by method: what Kind and Streams of its last call say
	ended    chan error             // receives when Test.Long ends

	mu    sync.Mutex
	conns []net.Conn
}

// try tests the rule, within limit.
func (r protocolRule) try(p Protocol, client func(net.Conn) yodel.Caller, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	before := leak.Goroutines()
	t := &protocolTrial{Protocol: p, client: client, servedTrial: newServedTrial(ctx), ended: make(chan error, 1000)}
	served, err := t.start(r.options)
	if err != nil {
		return err
	}
	err = t.run(func() error { return r.check(t) })
	t.mu.Lock()
	for _, c := range t.conns {
		_ = c.Close() // it may be closed already
	}
	t.mu.Unlock()
	ended, stop := context.WithCancel(context.Background())
	time.AfterFunc(time.Second, stop) // running calls of disconnected clients have this long to end
	_ = t.Shutdown(ended)             // another rule checks the error
	stop()
	<-served
	switch {
	case err != nil:
		return err
	case t.faults.Load() != nil:
		return fmt.Errorf("the server logged: %s", *t.faults.Load())
	}
	if left := leak.Outliving(before); left != "" {
		return fmt.Errorf("goroutines that did not end:\n\n%s", left)
	}
	return nil
}

// start starts the server with the methods for the rules.
func (t *protocolTrial) start(o yodel.ServerOptions) (served chan error, err error) {
	o.Codecs, o.Protocols, o.Logger = t.Codecs, []yodel.Protocol{t.Protocol.Protocol}, slog.New(faultLog{slog.DiscardHandler, t})
	o.Observers = []yodel.Observer{{End: func(context.Context, *yodel.Call, error) { t.observed.Add(1) }}}
	o.Middleware = append([]yodel.Middleware{t.middleware}, o.Middleware...)
	t.Server = yodel.NewServer(&o)
	t.addr, served, err = t.serve(context.Background(), t.Server, map[string]func(context.Context, *string) (*string, error){
		"Test.Echo":  func(_ context.Context, in *string) (*string, error) { return in, nil },
		"Test.Panic": func(context.Context, *string) (*string, error) { panic("the secret of a panic") },
		"Test.Exit":  func(context.Context, *string) (*string, error) { runtime.Goexit(); return nil, nil },
		"Test.Fail": func(_ context.Context, in *string) (*string, error) {
			return nil, yodel.Errorf(yodel.Unknown, "it failed: %s", *in)
		},
		"Test.Code":     failsWith,
		"Test.Large":    func(context.Context, *string) (*string, error) { return new(strings.Repeat("x", 12<<20)), nil },
		"Test.Deadline": timeLeft,
		"Test.Metadata": func(ctx context.Context, in *string) (*string, error) {
			return new(yodel.CallFrom(ctx).Metadata[*in]), nil
		},
		"Test.Wait": t.wait,
		"Test.Long": t.long,
	})
	return served, err
}

// failsWith fails with the code of this name.
func failsWith(_ context.Context, code *string) (*string, error) {
	for c := yodel.Canceled; c <= yodel.Unauthenticated; c++ {
		if c.String() == *code {
			return nil, yodel.Errorf(c, "the code is %s", *code)
		}
	}
	return nil, errors.New("there is no such code")
}

// timeLeft returns the time until the deadline.
func timeLeft(ctx context.Context, _ *string) (*string, error) {
	at, ok := ctx.Deadline()
	if !ok {
		return new("never"), nil
	}
	return new(time.Until(at).String()), nil
}

// long waits until its context ends.
func (t *protocolTrial) long(ctx context.Context, _ *string) (*string, error) {
	t.began <- struct{}{}
	<-ctx.Done()
	t.ended <- context.Cause(ctx)
	return nil, ctx.Err()
}

// middleware records what it sees, and refuses the request "refuse me".
func (t *protocolTrial) middleware(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		t.kinds.Store(call.Method, fmt.Sprintf("Kind %q, Streams %t", call.Kind(), call.Streams()))
		if call.Method != "Test.Echo" {
			return next(ctx, call)
		}
		body, err := call.Body()
		if err != nil {
			return err
		}
		if call.Peer() == nil || call.Peer().Addr == nil {
			return errors.New("the call has no peer")
		}
		t.seen.Store(new(fmt.Sprintf("%s, body %t", call.Method, len(body) > 0)))
		if err := call.Decode(); err != nil {
			return err
		}
		if in, ok := call.Args.(*string); ok && *in == "refuse me" {
			return yodel.Errorf(yodel.PermissionDenied, "the middleware refuses it")
		}
		return next(ctx, call)
	}
}

// A faultLog records the panics that a server logs, except those of handlers.
type faultLog struct {
	slog.Handler
	trial *protocolTrial
}

func (faultLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

func (l faultLog) Handle(_ context.Context, r slog.Record) error {
	if !strings.Contains(r.Message, "handler panicked") {
		what := r.Message
		r.Attrs(func(a slog.Attr) bool {
			what += " " + a.String()
			return true
		})
		l.trial.faults.Store(&what)
	}
	return nil
}

func (t *protocolTrial) dial() (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(t.ctx, "tcp", t.addr)
	if err == nil {
		t.mu.Lock()
		t.conns = append(t.conns, c)
		t.mu.Unlock()
	}
	return c, err
}

// A protocolClient makes calls over one connection.
type protocolClient struct {
	conn   net.Conn
	caller yodel.Caller
	ctx    context.Context
}

func (t *protocolTrial) connect() (*protocolClient, error) {
	c, err := t.dial()
	if err != nil {
		return nil, err
	}
	return &protocolClient{c, t.client(c), t.ctx}, nil
}

// connectAll creates n connections.
func (t *protocolTrial) connectAll(n int) ([]*protocolClient, error) {
	clients := make([]*protocolClient, n)
	for i := range clients {
		c, err := t.connect()
		if err != nil {
			return nil, err
		}
		clients[i] = c
	}
	return clients, nil
}

func (c *protocolClient) call(method, request string) (reply string, err error) {
	err = c.caller.Do(c.ctx, &yodel.Call{Method: method, Args: &request, Reply: &reply})
	return reply, err
}

// start begins a call on another goroutine.
func (c *protocolClient) start(method string) (outcome chan error) {
	outcome = make(chan error, 1)
	go func() {
		_, err := c.call(method, "x")
		outcome <- err
	}()
	return outcome
}

// echo checks that a call returns its request.
func (c *protocolClient) echo(request string) error {
	reply, err := c.call("Test.Echo", request)
	if err != nil {
		return fmt.Errorf("a call failed: %w", err)
	}
	if reply != request {
		return fmt.Errorf("the reply to %.40q is %.40q", request, reply)
	}
	return nil
}

// fails checks that a call fails with an error that contains text, and that the connection remains
// usable.
func (c *protocolClient) fails(method, request, text string) error {
	_, err := c.call(method, request)
	if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "secret") {
		return fmt.Errorf("%.40s: got the error %v, want one with %q", method, err, text)
	}
	if err = c.echo("afterwards"); err != nil {
		return fmt.Errorf("after %.40s on the same connection: %w", method, err)
	}
	return nil
}

// works checks that the server serves new clients.
func (t *protocolTrial) works() error {
	t.doingf("a call of a new client")
	c, err := t.connect()
	if err != nil {
		return err
	}
	defer c.conn.Close()
	return c.echo("works")
}

// request returns the bytes that a client sends for a call.
func (t *protocolTrial) request(request string) ([]byte, error) {
	c, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := &recordedConn{Conn: c}
	if err = (&protocolClient{c, t.client(r), t.ctx}).echo(request); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.sent.Bytes()), nil
}

// A recordedConn stores the bytes that are written to it.
type recordedConn struct {
	net.Conn
	mu   sync.Mutex
	sent bytes.Buffer
}

func (r *recordedConn) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.sent.Write(b)
	r.mu.Unlock()
	return r.Conn.Write(b)
}

// sendAndLeave sends bytes, closes its side, and waits until the server closes the connection.
func (t *protocolTrial) sendAndLeave(b []byte) error {
	c, err := t.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	_, _ = c.Write(b) // the server may have closed the connection
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // as above
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err = io.Copy(io.Discard, c); isTimeout(err) {
		return fmt.Errorf("the server does not close a connection that has sent %.100q and its end", b)
	}
	return nil
}

// alone waits until the server has no connections.
func (t *protocolTrial) alone() error {
	t.doingf("the end of all sessions")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for t.Stats().Conns > 0 {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			return fmt.Errorf("%d connections are open though their clients have left", t.Stats().Conns)
		}
	}
	return nil
}
