// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Protocol is a yodel.Protocol that TestProtocol checks, with the features that it has.
// TestProtocol skips a rule about a feature that the protocol does not have.
type Protocol struct {
	yodel.Protocol
	// Codecs are the codecs that the protocol needs in ServerOptions.Codecs.
	Codecs []yodel.Codec
	// Codes says whether the client learns the code of an error.
	Codes bool
	// Deadlines says whether requests carry a deadline.
	Deadlines bool
	// Metadata says whether requests carry metadata.
	Metadata bool
	// OneAtATime says whether a connection carries only one call at a time.
	OneAtATime bool
}

// TestProtocol checks that p fulfills the contract of yodel.Protocol and serves calls as yodel's
// own protocol does. It starts servers on loopback and calls them with a client of the protocol.
//
// Dial returns a client that makes calls over conn, which is a new connection. TestProtocol closes
// conn. It may call the client's Do concurrently. Do uses the fields Method, Args (a *string),
// Reply (a *string) and Metadata of the Call, and the deadline of its context. If the call fails,
// Do returns an error with the text that the client received. If Codes is set, it is a
// *yodel.Error.
//
// TestProtocol must not run in parallel with other tests, because it would regard their goroutines
// as the protocol's. Run it with the race detector.
func TestProtocol(t *testing.T, p Protocol, dial func(conn net.Conn) yodel.Caller) {
	t.Helper()
	for _, rule := range protocolRules {
		t.Run(rule.name, func(t *testing.T) {
			if rule.skip != nil && rule.skip(p) {
				t.Skip("the protocol does not have the feature")
			}
			if err := rule.try(p, dial, 30*time.Second); err != nil {
				t.Errorf("%v\nThe rule: %s", err, rule.why)
			}
		})
	}
}

// A protocolRule is one rule for protocols.
type protocolRule struct {
	name    string
	why     string
	skip    func(Protocol) bool // nil if the rule is for every protocol
	options yodel.ServerOptions
	check   func(*protocolTrial) error
}

var protocolRules = []protocolRule{
	{name: "unary", check: checkCalls, why: `A call returns what the handler returned, over a new connection and over a used one, with
messages of any size.`},
	{name: "many calls", check: checkManyCalls, why: "Concurrent calls do not see each other, on several connections and on one."},
	{name: "text of an error", check: checkErrorText, why: "The caller gets the text of a handler's error."},
	{name: "code of an error", check: checkCodes, skip: func(p Protocol) bool { return !p.Codes }, why: "The caller gets the code of a handler's error."},
	{name: "unknown method", check: checkUnknown, why: "A call of a method that does not exist fails, and the connection remains usable."},
	{name: "panic", check: checkPanic, why: `A handler that panics fails its own call, nothing of the panic reaches the caller, and the
connection remains usable.`},
	{name: "Goexit", check: checkGoexit, why: `A handler that ends its goroutine fails its own call, and the connection remains usable. Run does
not return then: send the error of Served.Outcome in a deferred function.`},
	{name: "deadline", check: checkDeadline, skip: func(p Protocol) bool { return !p.Deadlines }, why: `The context of the handler has the deadline of the
request: set Call.Deadline before Admit.`},
	{name: "metadata", check: checkMetadata, skip: func(p Protocol) bool { return !p.Metadata }, why: `The handler sees the metadata of the request: set
Call.Metadata before Run.`},
	{name: "cancellation", check: checkLeaves, why: `The context of a handler ends when its client closes the connection: read the connection
while calls run.`},
	{name: "statistics", check: checkCounted, why: `Each call is run and ended once, so that the handler, the observers and the records see it
once, whether it succeeds or fails.`},
	{name: "auth by middleware", check: checkMiddleware, why: "Middleware sees the method, the body and the peer of each call, and can refuse it."},
	{name: "MaxOpen", check: checkMaxOpen, options: yodel.ServerOptions{MaxOpen: 2}, why: `No more calls run than ServerOptions.MaxOpen allows, and the others wait and
succeed: admit each call before its body is read, and wait.`},
	{name: "MaxMessage", check: checkMaxMessage, options: yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 64 << 10}},
		why: "A request larger than Limits.MaxMessage is refused. Other connections go on."},
	{name: "MaxConns", check: checkMaxConns, options: yodel.ServerOptions{MaxConns: 2}, why: `A connection of the protocol takes one place of ServerOptions.MaxConns until it ends:
Serve returns when the client has left.`},
	{name: "drain", check: checkDrain, why: `A call that runs when Shutdown begins is answered. Then the session ends, and an idle one ends soon: return when
Next returns io.EOF.`},
	{name: "Shutdown's deadline", check: checkCutOff, why: `When the context of Shutdown ends, so do the contexts of handlers and the connections, also
that of a client that has sent half a request.`},
	{name: "garbage", check: checkGarbage, why: `Whatever a client sends before it leaves, its connection ends and nothing panics. Other clients do not notice.`},
	{name: "cut requests", check: checkTruncated, why: `A connection that ends within a request ends its session and nothing else. The call is not executed.`},
	{name: "slow first bytes", check: checkSlow, why: `A request that arrives byte by byte is served.`},
	{name: "half a request", check: checkHalf, options: yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 50 * time.Millisecond, Handshake: 100 * time.Millisecond}},
		why: `A client that does not send the rest of a request loses its connection: call Session.Next before each request.`},
	{name: "unread replies", check: checkUnread, options: yodel.ServerOptions{MaxOpen: 1, Limits: yodel.Limits{KeepAlive: 100 * time.Millisecond}},
		why: `A client that does not read its replies does not hold the places of its calls: write with Session.Write.`},
}

// A protocolTrial is a test of one rule with its own server.
type protocolTrial struct {
	Protocol
	*yodel.Server
	client func(net.Conn) yodel.Caller
	addr   string
	ctx    context.Context
	step   atomic.Pointer[string]
	faults atomic.Pointer[string] // the last panic of the protocol's code in the server's log

	executed atomic.Int32
	observed atomic.Int32
	seen     atomic.Pointer[string] // what the middleware saw last
	began    chan struct{}          // receives when Test.Wait or Test.Long begins
	release  chan struct{}          // lets Test.Wait return
	ended    chan error             // receives when Test.Long ends

	mu    sync.Mutex
	conns []net.Conn
}

// try tests the rule, within limit.
func (r protocolRule) try(p Protocol, client func(net.Conn) yodel.Caller, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	before := goroutines()
	t := &protocolTrial{
		Protocol: p, client: client, ctx: ctx,
		began: make(chan struct{}, 1000), release: make(chan struct{}), ended: make(chan error, 1000),
	}
	served, err := t.serve(r.options)
	if err != nil {
		return err
	}
	t.doingf("the check began")
	outcome := make(chan error, 1)
	go func() {
		var err error
		defer func() { outcome <- err }()
		defer recoverTo(&err)
		err = r.check(t)
	}()
	select {
	case err = <-outcome:
	case <-ctx.Done():
		err = fmt.Errorf("blocked: %s", *t.step.Load())
	}
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
	if left := outliving(before); left != "" {
		return fmt.Errorf("goroutines that did not end:\n\n%s", left)
	}
	return nil
}

func (t *protocolTrial) doingf(format string, args ...any) {
	t.step.Store(new(fmt.Sprintf(format, args...)))
}

// serve starts the server with the methods for the rules.
func (t *protocolTrial) serve(o yodel.ServerOptions) (served chan error, err error) {
	o.Codecs, o.Protocols, o.Logger = t.Codecs, []yodel.Protocol{t.Protocol.Protocol}, slog.New(faultLog{slog.DiscardHandler, t})
	o.Observers = []yodel.Observer{{End: func(context.Context, *yodel.Call, error) { t.observed.Add(1) }}}
	o.Middleware = []yodel.Middleware{t.middleware}
	t.Server = yodel.NewServer(&o)
	for name, f := range map[string]func(context.Context, *string) (*string, error){
		"Test.Echo":     func(_ context.Context, in *string) (*string, error) { return in, nil },
		"Test.Panic":    func(context.Context, *string) (*string, error) { panic("the secret of a panic") },
		"Test.Exit":     func(context.Context, *string) (*string, error) { runtime.Goexit(); return nil, nil },
		"Test.Fail":     func(_ context.Context, in *string) (*string, error) { return nil, errors.New("it failed: " + *in) },
		"Test.Code":     failsWith,
		"Test.Large":    func(context.Context, *string) (*string, error) { return new(strings.Repeat("x", 12<<20)), nil },
		"Test.Deadline": timeLeft,
		"Test.Metadata": func(ctx context.Context, in *string) (*string, error) {
			return new(yodel.CallFrom(ctx).Metadata[*in]), nil
		},
		"Test.Wait": t.wait,
		"Test.Long": t.long,
	} {
		err := t.Handle(name, func(ctx context.Context, in *string) (*string, error) {
			t.executed.Add(1)
			return f(ctx, in)
		})
		if err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t.addr = l.Addr().String()
	served = make(chan error, 1)
	go func() { served <- t.Serve(context.Background(), l) }()
	return served, nil
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

// wait waits until release.
func (t *protocolTrial) wait(ctx context.Context, in *string) (*string, error) {
	t.began <- struct{}{}
	select {
	case <-t.release:
		return in, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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

func checkCalls(t *protocolTrial) error {
	used, err := t.connect()
	if err != nil {
		return err
	}
	for _, request := range []string{"", "hello", "ünïcödé \x01\\\" ", strings.Repeat("large ", 50_000)} {
		t.doingf("a call with %d bytes", len(request))
		fresh, err := t.connect()
		if err != nil {
			return err
		}
		if err := errors.Join(used.echo(request), fresh.echo(request)); err != nil {
			return err
		}
	}
	return nil
}

func checkManyCalls(t *protocolTrial) error {
	t.doingf("320 calls on 4 connections")
	clients, err := t.connectAll(4)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	faults := make(chan error, 16)
	for i := range cap(faults) {
		group.Go(func() {
			var err error
			for j := 0; j < 20 && err == nil; j++ {
				err = clients[i%4].echo(strings.Repeat(fmt.Sprint(i, " ", j), 100))
			}
			faults <- err
		})
	}
	group.Wait()
	for range cap(faults) {
		err = errors.Join(err, <-faults)
	}
	if err != nil || t.OneAtATime {
		return err
	}
	t.doingf("a call while another one of its connection runs")
	waiting := clients[0].start("Test.Wait")
	<-t.began
	err = clients[0].echo("meanwhile")
	close(t.release)
	return errors.Join(err, <-waiting)
}

func checkErrorText(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call that fails")
	return c.fails("Test.Fail", "no such thing", "it failed: no such thing")
}

func checkCodes(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	for code := yodel.Canceled; code <= yodel.Unauthenticated; code++ {
		t.doingf("a call that fails with the code %s", code)
		if _, err := c.call("Test.Code", code.String()); yodel.CodeOf(err) != code {
			return fmt.Errorf("the handler's error has the code %s; the client got %v", code, err)
		}
	}
	return nil
}

func checkUnknown(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("calls of methods that do not exist")
	return errors.Join(c.fails("Test.Nothing", "x", ""), c.fails("Nobody.Echo", "x", ""), c.fails("Test."+strings.Repeat("x", 2000), "x", ""))
}

func checkPanic(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("calls whose handler panics")
	return errors.Join(c.fails("Test.Panic", "x", ""), c.fails("Test.Panic", "x", ""))
}

func checkGoexit(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("calls whose handler ends its goroutine")
	return errors.Join(c.fails("Test.Exit", "x", ""), c.fails("Test.Exit", "x", ""))
}

func checkDeadline(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call with a deadline")
	ctx, cancel := context.WithTimeout(t.ctx, 20*time.Second)
	defer cancel()
	var left string
	if err = c.caller.Do(ctx, &yodel.Call{Method: "Test.Deadline", Args: new("x"), Reply: &left}); err != nil {
		return err
	}
	if d, err := time.ParseDuration(left); err != nil || d > 20*time.Second || d < 0 {
		return fmt.Errorf("the deadline was in 20 s; the handler had %s left", left)
	}
	t.doingf("the end of a call whose deadline passes")
	short, cancel := context.WithTimeout(t.ctx, 50*time.Millisecond)
	defer cancel()
	if err = c.caller.Do(short, &yodel.Call{Method: "Test.Long", Args: new("x"), Reply: &left}); err == nil {
		return errors.New("a call succeeded although its deadline had passed")
	}
	<-t.ended
	return nil
}

func checkMetadata(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call with metadata")
	var got string
	call := &yodel.Call{Method: "Test.Metadata", Args: new("color"), Reply: &got, Metadata: yodel.Metadata{"color": "dark blue", "size": "5"}}
	if err = c.caller.Do(t.ctx, call); err != nil || got != "dark blue" {
		return fmt.Errorf("the metadata is color: dark blue; the handler got %q, and the caller the error %v", got, err)
	}
	return nil
}

func checkLeaves(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call")
	outcome := c.start("Test.Long")
	<-t.began
	t.doingf("the end of a handler's context after its client has left")
	_ = c.conn.Close() // the rule tests this
	if err := <-t.ended; err == nil {
		return errors.New("the context ended without a cause")
	}
	<-outcome
	return t.works()
}

func checkCounted(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("calls that succeed and fail")
	methods := []string{"Test.Echo", "Test.Fail", "Test.Panic", "Test.Exit"}
	for _, method := range methods {
		for range 5 {
			_, _ = c.call(method, "x") // other rules check it
		}
	}
	n := int32(5 * len(methods))
	t.doingf("the end of the calls")
	if err := t.Shutdown(t.ctx); err != nil {
		return err
	}
	if got := t.executed.Load(); got != n {
		return fmt.Errorf("of %d calls, handlers executed %d", n, got)
	}
	if got := t.observed.Load(); got != n {
		return fmt.Errorf("of %d calls, observers saw the end of %d", n, got)
	}
	for _, r := range t.Samples(nil).Calls {
		if r.Method == "Test.Fail" && r.Peer == c.conn.LocalAddr().String() {
			return nil
		}
	}
	return errors.New("a failed call is not in the records of the server, or without its peer")
}

func checkMiddleware(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("calls that middleware looks at")
	if err = c.echo("x"); err != nil {
		return err
	}
	if seen := t.seen.Load(); seen == nil || *seen != "Test.Echo, body true" {
		return errors.New("middleware did not see the method and its body")
	}
	before := t.executed.Load()
	if _, err = c.call("Test.Echo", "refuse me"); err == nil || t.executed.Load() != before {
		return errors.New("a call was executed that the middleware refuses")
	}
	return c.fails("Test.Echo", "refuse me", "the middleware refuses it")
}

func checkMaxOpen(t *protocolTrial) error {
	t.doingf("6 calls, of which 2 may be open")
	const calls = 6
	clients, err := t.connectAll(calls)
	if err != nil {
		return err
	}
	var outcomes []chan error
	for _, c := range clients {
		outcomes = append(outcomes, c.start("Test.Wait"))
	}
	<-t.began
	<-t.began
	select {
	case <-t.began:
		return errors.New("3 calls run, and MaxOpen is 2")
	case <-time.After(100 * time.Millisecond): // a protocol that fulfills the rule passes in any case
	}
	t.doingf("calls that waited for room")
	close(t.release)
	for _, outcome := range outcomes {
		err = errors.Join(err, <-outcome)
	}
	return err
}

func checkMaxMessage(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a request that is too large")
	if _, err = c.call("Test.Echo", strings.Repeat("x", 256<<10)); err == nil || t.executed.Load() > 0 {
		return errors.New("a request of 256 KiB was executed, and the limit is 64 KiB")
	}
	return t.works()
}

func checkMaxConns(t *protocolTrial) error {
	t.doingf("calls on as many connections as there may be")
	clients, err := t.connectAll(2)
	if err != nil {
		return err
	}
	if err = errors.Join(clients[0].echo("x"), clients[1].echo("x")); err != nil {
		return err
	}
	if err = t.works(); err == nil {
		return errors.New("a call succeeded on a third connection, and MaxConns is 2")
	}
	_ = clients[0].conn.Close() // the server will notice it soon
	for t.works() != nil {
		t.doingf("a call on a new connection after another one has ended")
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.ctx.Done():
			return errors.New("a connection has ended, and no other one gets its place")
		}
	}
	return nil
}

func checkDrain(t *protocolTrial) error {
	const calls = 4
	clients, err := t.connectAll(calls + 1)
	if err != nil {
		return err
	}
	idle := clients[calls]
	if err = idle.echo("x"); err != nil {
		return err
	}
	var outcomes []chan error
	for _, c := range clients[:calls] {
		outcomes = append(outcomes, c.start("Test.Wait"))
	}
	t.doingf("calls")
	for range calls {
		<-t.began
	}
	stopped := make(chan error, 1)
	go func() { stopped <- t.Shutdown(t.ctx) }()
	t.doingf("the end of an idle connection while the server drains")
	_, _ = io.Copy(io.Discard, idle.conn) // until the connection ends, in any way
	close(t.release)
	t.doingf("calls that were open when the server began to drain")
	for _, outcome := range outcomes {
		if err = <-outcome; err != nil {
			return fmt.Errorf("a call that ran was lost: %w", err)
		}
	}
	t.doingf("the end of Shutdown")
	return <-stopped
}

func checkCutOff(t *protocolTrial) error {
	sent, err := t.request("x")
	if err != nil {
		return err
	}
	half, err := t.dial()
	if err != nil {
		return err
	}
	if _, err = half.Write(sent[:len(sent)-1]); err != nil {
		return err
	}
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call")
	outcome := c.start("Test.Long")
	<-t.began
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if err := t.Shutdown(ctx); err == nil {
		return errors.New("Shutdown with a context that has ended cut off a call, and returned no error")
	}
	t.doingf("the end of a handler's context after Shutdown")
	<-t.ended
	t.doingf("the end of a call that was cut off")
	if err := <-outcome; err == nil {
		return errors.New("a call that was cut off succeeded")
	}
	t.doingf("the end of a connection with half a request")
	_, _ = io.Copy(io.Discard, half) // until the connection ends, in any way
	return nil
}

func checkGarbage(t *protocolTrial) error {
	sent, err := t.request("hello")
	if err != nil {
		return err
	}
	good, err := t.connect()
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		t.doingf("garbage number %d", i)
		garbage := bytes.Clone(sent)
		for range 1 + rng.IntN(4) {
			garbage[rng.IntN(len(garbage))] = byte(rng.Uint32())
		}
		switch i % 4 {
		case 0: // after a request
			garbage = slices.Concat(sent, garbage)
		case 1:
			garbage = make([]byte, 1+rng.IntN(1000))
			for j := range garbage {
				garbage[j] = byte(rng.Uint32())
			}
		case 2: // after the beginning of a request
			garbage = slices.Concat(sent[:rng.IntN(len(sent))], garbage)
		}
		if err = t.sendAndLeave(garbage); err != nil {
			return err
		}
		if err = good.echo("x"); err != nil {
			return fmt.Errorf("another client, after %.100q: %w", garbage, err)
		}
	}
	return t.works()
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

func checkTruncated(t *protocolTrial) error {
	sent, err := t.request(strings.Repeat("hello ", 20))
	if err != nil {
		return err
	}
	before := t.executed.Load()
	for i := range sent {
		t.doingf("the first %d bytes of a request", i)
		if err = t.sendAndLeave(sent[:i]); err != nil {
			return err
		}
	}
	if err = t.alone(); err != nil { // all calls have ended
		return err
	}
	if got := t.executed.Load(); got != before {
		return fmt.Errorf("%d calls were executed whose requests were not complete", got-before)
	}
	return t.works()
}

func checkSlow(t *protocolTrial) error {
	c, err := t.dial()
	if err != nil {
		return err
	}
	t.doingf("a call whose request arrives byte by byte")
	return (&protocolClient{c, t.client(slowConn{c}), t.ctx}).echo("slow")
}

// A slowConn writes single bytes.
type slowConn struct{ net.Conn }

func (s slowConn) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := s.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
		<-time.After(100 * time.Microsecond) // most bytes then arrive alone
	}
	return len(b), nil
}

func checkHalf(t *protocolTrial) error {
	sent, err := t.request("hello")
	if err != nil {
		return err
	}
	for _, n := range []int{1, len(sent) / 2, len(sent) - 1} {
		c, err := t.dial()
		if err != nil {
			return err
		}
		if _, err = c.Write(sent[:n]); err != nil {
			return err
		}
		t.doingf("the end of a connection with %d bytes of a request, which has %d", n, len(sent))
		_, _ = io.Copy(io.Discard, c) // until the connection ends, in any way
	}
	return t.works()
}

func checkUnread(t *protocolTrial) error {
	c, err := t.dial()
	if err != nil {
		return err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if err = tcp.SetReadBuffer(64 << 10); err != nil {
			return err
		}
	}
	unread := &unreadConn{Conn: c, closed: make(chan struct{})}
	defer unread.Close()
	outcome := (&protocolClient{unread, t.client(unread), t.ctx}).start("Test.Large")
	for t.executed.Load() == 0 {
		t.doingf("a call of a client that does not read")
		<-time.After(time.Millisecond)
	}
	if err = t.works(); err != nil { // the unread connection leaves room for other clients
		return err
	}
	_ = unread.Close()
	<-outcome
	return nil
}

// An unreadConn is a connection whose Read waits until it is closed.
type unreadConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (u *unreadConn) Read([]byte) (int, error) {
	<-u.closed
	return 0, net.ErrClosed
}

func (u *unreadConn) Close() error {
	u.once.Do(func() { close(u.closed) })
	return u.Conn.Close()
}
