// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/samples"
)

// ClientOptions changes how a client works. The zero value is a good client.
type ClientOptions struct {
	// Codec encodes messages of calls that name none. Default JSON.
	Codec Codec
	// Compressor compresses messages of calls that name none, both ways. Default none.
	Compressor Compressor
	// CompressAbove is the size from which messages are compressed, in bytes. Default 1024.
	CompressAbove int
	// Transport connects to instances. Default TCP.
	Transport Transport
	// Balancer chooses among instances. Default RoundRobin.
	Balancer Balancer
	// Middleware sees each call once, the first one outermost. An asynchronous call takes a
	// goroutine when there is any. Default none.
	Middleware []Middleware
	// EndpointMiddleware sees each attempt, below the balancer. Default none.
	EndpointMiddleware []EndpointMiddleware
	// Observers watch calls, outside of all middleware. Default none.
	Observers []Observer
	// SlowAfter is how long a call may take until there is a record of it although it succeeds: see
	// Call.Report and Client.Samples. It counts from when the call was made until its reply came,
	// and for a stream until the server took it. Default 1 s; negative is for ever.
	SlowAfter time.Duration
	// Idempotent names methods that may be executed twice, as Call.Idempotent does for a call.
	// Default none.
	Idempotent []string
	// Timeout ends calls that have no deadline of their own. Default none.
	Timeout time.Duration
	// DialTimeout ends attempts to connect, and the wait for the first set of instances. Default 3
	// s.
	DialTimeout time.Duration
	// ConnsPerEndpoint is how many connections a client makes to one instance, at most. One is the
	// fastest for most loads, because many calls share each write. Another one is made when those
	// there are have become saturated: callers wait for the server's window, or behind what waits
	// to be written. It is closed when it has been idle for Limits.IdleTimeout, or for 30 s if that
	// is not set. Default 1.
	ConnsPerEndpoint int
	// ConnMetadata is what the server learns of this client once per connection: a token, a name.
	// Default none.
	ConnMetadata Metadata
	// NoWait makes calls fail at once when a connection's limits are reached, instead of waiting.
	// Default false.
	NoWait bool
	// Checksum adds a CRC-32C to each message, both ways. Default false: TCP and TLS have their
	// own.
	Checksum bool
	// Server is whose methods the servers that this client connects to may call, over the client's
	// own connections: see Server.Peers and Call.Peer. It need not listen. Its Accept, OnConn and
	// MaxConns are for its listeners only; what it says of how much may be open holds for what
	// comes in, and its MaxMemory and Limits.MaxMemory for all that these connections hold. Default
	// none.
	Server *Server
	// MaxMemory is how many bytes all servers together can make the client hold, as
	// ServerOptions.MaxMemory is for a server. A reply counts until it has come whole, and while it
	// is decompressed. With Server, that server's limits hold for the connections, and this one for
	// replies while they are decompressed. Default as there.
	MaxMemory int
	// Limits bounds what a connection may cost.
	Limits Limits
	// OnConn is called with each connection event. It must return soon, and may close the client.
	// Default none.
	OnConn func(ConnEvent)
	// Logger is told of what goes wrong without failing a call. Default slog.Default().
	Logger *slog.Logger
}

// A Client calls methods of one service on all its instances. It connects when it needs to, stays
// connected, and may be used concurrently. Make one per service and keep it.
type Client struct {
	requester
	opts    ClientOptions
	handler Handler // observers, middleware, balance
	wraps   bool    // there is Middleware, which may take time
	direct  bool    // nothing stands between Go and the connection
	config  mux.Config
	cluster *cluster
	refresh func()        // the resolver's; nil if it has none
	async   chan struct{} // a token for each goroutine of Go
	orders  orders        // of ordered calls

	toldKeys atomic.Bool // that a server does not remember keys

	ctx     context.Context //nolint:containedctx // ends with the client
	closing <-chan struct{}
	born    time.Duration // on the clock
	cancel  context.CancelFunc
	shut    atomic.Bool // Close has been called
	ending  sync.Mutex  // guards cancel
	wg      sync.WaitGroup
	hooks   hooks
	left    chan struct{} // closed when Close has returned for the first time
}

// NewClient returns a client for the instances that r knows. It does not wait for them, nor for a
// connection.
func NewClient(r Resolver, o *ClientOptions) *Client {
	if o == nil {
		o = &ClientOptions{}
	}
	c := &Client{opts: *o, born: clock()}
	opts := &c.opts
	opts.setDefaults()
	c.guard = &guard{log: opts.Logger}
	c.codec, c.compressor, c.compressAbove = opts.Codec, opts.Compressor, opts.CompressAbove
	c.noWait, c.checksum, c.limits = opts.NoWait, opts.Checksum, opts.Limits.withDefaults()
	c.side, c.slowAfter, c.samples = clientSide, slowAfter(opts.SlowAfter), samples.New[CallReport]()
	c.client = c
	c.memory = mux.NewMemory(opts.MaxMemory)
	c.setUp(opts.Idempotent)
	c.wraps = len(opts.Middleware) > 0
	c.direct = len(opts.Middleware) == 0 && len(opts.EndpointMiddleware) == 0
	c.handler = c.observe(opts.Observers, chain(opts.Middleware, c.balance()))
	c.async = make(chan struct{}, c.limits.MaxOpen)
	c.orders.limit = max(c.limits.MaxOpen, minUntold)
	c.config = mux.Config{
		Limits: c.limits.mux(), Metadata: appendMetadata(nil, opts.ConnMetadata), Agent: agent,
		Learned: c.learned, Pool: mux.NewPool(), Watch: mux.NewWatch(), Memory: c.memory,
	}
	c.configure(&c.config)
	if opts.Server != nil {
		opts.Server.lend(&c.config)
	}
	c.left = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	c.ctx, c.closing, c.cancel = ctx, ctx.Done(), cancel
	c.cluster = newCluster(c, r)
	c.cluster.source.describe(r)
	if asked, ok := r.(interface{ Refresh() }); ok {
		c.refresh = asked.Refresh
	}
	switch s := r.(type) {
	case nil:
		c.cluster.update(nil)
		c.cluster.fail(errNoResolver)
	case static: // a goroutine would wait for nothing, with a stack of 4 KiB
		c.cluster.update(s.instances())
		if len(s) == 0 {
			c.cluster.fail(errNoAddress)
		}
	default:
		c.wg.Go(func() { c.cluster.follow(ctx, r) })
	}
	return c
}

// setDefaults replaces zero values.
func (opts *ClientOptions) setDefaults() {
	if opts.Codec == nil {
		opts.Codec = JSON
	}
	if opts.Transport == nil {
		opts.Transport = TCP
	}
	if opts.Balancer == nil {
		opts.Balancer = RoundRobin
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.MaxMemory <= 0 {
		opts.MaxMemory = mux.DefaultMemory()
	}
	opts.refuseNil()
	opts.CompressAbove = orDefault(opts.CompressAbove, compressAbove)
	opts.Timeout = min(opts.Timeout, forever)
	opts.DialTimeout = orDefault(opts.DialTimeout, 3*time.Second)
	opts.ConnsPerEndpoint = orDefault(opts.ConnsPerEndpoint, 1)
	opts.Logger = guarded(opts.Logger)
}

var errNoResolver = errors.New("NewClient was given no resolver")

// Dial returns a client for servers at the given addresses, with default options. It does not
// wait for a connection: a call does, or Ready.
func Dial(addrs ...string) *Client { return NewClient(Static(addrs...), nil) }

// Close ends the client: calls that are open fail. Connections end within a second. Hooks and
// callbacks may call Close: it waits for the code of users for 1.5 s at most.
func (c *Client) Close() {
	c.hooks.letGo()
	if c.shut.Swap(true) {
		waitFor(c.left, closeTime)
		return
	}
	defer close(c.left)
	c.ending.Lock() // nothing begins in the background from now on
	c.cancel()
	c.ending.Unlock()
	ended := make(chan struct{})
	go func() {
		c.cluster.close()
		c.wg.Wait()
		c.config.Pool.Close()
		close(ended)
	}()
	waitFor(ended, closeTime)
	if c.opts.Server != nil {
		c.opts.Server.takeBack(c.config.Pool)
	}
}

// closeTime bounds how long Close waits for what runs, which may be what has called it. Connections
// take a second at most.
const closeTime = 1500 * time.Millisecond

// waitFor waits for ch to be closed, for at most d.
func waitFor(ch <-chan struct{}, d time.Duration) {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-ch:
	case <-late.C:
	}
}

// Endpoints returns the current set of endpoints.
func (c *Client) Endpoints() []*Endpoint { return c.cluster.endpoints() }

// Several reports whether there is more than one endpoint, or may be because the resolver has not
// spoken yet: whether a call can go to another one.
func (c *Client) Several() bool {
	set := c.cluster.set.Load()
	return set == nil || len(set.endpoints) > 1
}

// Ready waits until one instance is connected, or explains why none is.
func (c *Client) Ready(ctx context.Context) error { return c.cluster.ready(ctx) }

// Call calls a method: in is a pointer to the request, out a pointer to what the reply is decoded
// into; both may be Values, and out may be nil. It allocates nothing. For anything more than that,
// see Do.
func (c *Client) Call(ctx context.Context, method string, in, out any) error {
	if c == nil || ctx == nil {
		return missing(ctx, method)
	}
	o := c.take()
	call := &o.call
	call.Method, call.Args, call.Reply, call.out = method, in, out, o
	call.inherit(ctx)
	c.timeout(call)
	err := c.conclude(ctx, call, c.handler(ctx, call))
	c.give(o)
	return err
}

// Do carries out a call. It may be used again afterwards.
func (c *Client) Do(ctx context.Context, call *Call) error {
	if c == nil || ctx == nil {
		return missing(ctx, call.Method)
	}
	if call.Ordered {
		return c.doOrdered(ctx, call)
	}
	o := c.take()
	call.begin(ctx, o)
	c.timeout(call)
	err := c.conclude(ctx, call, c.handler(ctx, call))
	call.end()
	c.give(o)
	return err
}

// Notify sends a request that gets no reply. It returns when the request is queued for sending.
func (c *Client) Notify(ctx context.Context, method string, in any) error {
	if c == nil || ctx == nil {
		return missing(ctx, method)
	}
	o := c.take()
	call := &o.call
	call.Method, call.Args, call.OneWay, call.out = method, in, true, o
	call.inherit(ctx)
	c.timeout(call)
	err := c.conclude(ctx, call, c.handler(ctx, call))
	c.give(o)
	return err
}

// refuseNil panics if a middleware is nil.
func (o *ClientOptions) refuseNil() {
	refuseNil("ClientOptions.Middleware", o.Middleware, func(m Middleware) bool { return m == nil })
	refuseNil("ClientOptions.EndpointMiddleware", o.EndpointMiddleware, func(m EndpointMiddleware) bool { return m == nil })
}

// missing returns the error of a call that was given no client, or no context.
//
//go:noinline
func missing(ctx context.Context, method string) error {
	if ctx == nil {
		return refusal("YDL2008", "%s: the context is nil", method)
	}
	return refusal("YDL2008", "%s: the client is nil", method)
}

// timeout begins the time of a call, if somebody wants to know of it before it comes to an
// endpoint.
func (c *Client) timeout(call *Call) {
	if c.opts.Timeout > 0 && call.Deadline.IsZero() {
		call.Deadline, call.limited = mux.TimeOf(call.made()+c.opts.Timeout), true
	} else if c.wraps {
		call.made()
	}
}

// Go carries out a call without waiting for the reply, and calls done, which may be nil, when it
// has ended. The call, and what it points to, belong to the client until then.
//
// Done is called exactly once. It usually runs on the goroutine that reads the connection, so it
// should be short. It runs on another goroutine if the client has middleware, or if the call could
// not be sent at once on an existing connection. Go may call it before it returns: for a one-way
// call, for a call that cannot be sent, and, while too many calls are open, in a handler or after
// ctx has ended. Callbacks of one client may run concurrently.
//
// A panic of done is logged. A panic of other code that the call passes, such as a codec, is logged
// too, and done gets an error (YDL5004).
//
// When more calls are open than the limits allow, Go waits. With middleware, each call takes a
// goroutine.
func (c *Client) Go(ctx context.Context, call *Call, done func(error)) {
	if c == nil || ctx == nil {
		callback(done).ended(missing(ctx, call.Method))
		return
	}
	if call.Ordered {
		c.goOrdered(ctx, call, done)
		return
	}
	if !c.direct {
		c.goInOwnGoroutine(ctx, call, done)
		return
	}
	o := c.take()
	call.begin(ctx, o)
	c.start(ctx, o, call, callback(done))
}

// then is Go for a method with a request and a reply and nothing else.
func (c *Client) then(ctx context.Context, method string, in, out any, done ender) {
	if c == nil || ctx == nil {
		done.ended(missing(ctx, method))
		return
	}
	if !c.direct {
		c.goInOwnGoroutine(ctx, &Call{Method: method, Args: in, Reply: out}, done.ended)
		return
	}
	o := c.take()
	call := &o.call
	call.Method, call.Args, call.Reply, call.out = method, in, out, o
	call.inherit(ctx)
	c.start(ctx, o, call, done)
}

func (c *Client) goInOwnGoroutine(ctx context.Context, call *Call, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	if !c.token(ctx) {
		c.doLater(ctx, call, done, false)
		return
	}
	go c.doLater(ctx, call, done, true)
}

// doLater carries out an asynchronous call, and gives back the token for the goroutine that it
// takes, if it has one.
func (c *Client) doLater(ctx context.Context, call *Call, done func(error), token bool) {
	ended, err := false, error(nil)
	defer func() {
		if value := recover(); !ended {
			err = c.guard.interrupted(ctx, call.Method, value)
		}
		if token {
			<-c.async // before the callback, which may begin another call
		}
		c.guard.tell(callback(done), err)
	}()
	err = c.Do(ctx, call)
	ended = true
}

// token waits for leave to take a goroutine for an asynchronous call. Without it the call is
// carried out on the caller's: when ctx has ended, or the caller is a handler, whom those that have
// the tokens may be waiting for.
func (c *Client) token(ctx context.Context) bool {
	select {
	case c.async <- struct{}{}:
		return true
	default:
	}
	if CallFrom(ctx) != nil {
		return false
	}
	select {
	case c.async <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// begin readies a call of the user's, which may have been used before.
func (c *Call) begin(ctx context.Context, o *outgoing) {
	c.out, c.Attempt = o, 0
	// What is as it should be is not written: the reading goroutine has it in its processor's
	// cache.
	if c.tried != nil {
		c.tried = nil
	}
	if c.watch != unwatched || c.began != 0 {
		c.watch, c.began, c.took = unwatched, 0, 0
	}
	if c.rare != nil || c.group != nil || c.hold != c.resumed {
		c.rare, c.group, c.hold = nil, nil, c.resumed
	}
	if c.picked != nil { // the endpoint of another call that it was used for
		if c.Endpoint == c.picked {
			c.Endpoint = nil
		}
		c.picked = nil
	}
	c.inherit(ctx)
}

// end takes back what was done to a call of the user's for the time it ran.
func (c *Call) end() {
	c.out = nil
	if c.turn != nil {
		c.turn = nil
	}
	if c.limited {
		c.Deadline, c.limited = time.Time{}, false
	}
	if c.stays {
		c.stays = false
	}
	c.disinherit()
}

// declared reports whether a method is known to be idempotent.
func (q *requester) declared(method string) bool {
	m := q.last.Load()
	if m == nil || m.name != method {
		m = (*q.methods.Load())[method]
	}
	if m == nil {
		return q.idempotent[method] // which does not change
	}
	return m.idempotent.Load()
}

// Background runs f on a goroutine of the client's. Ctx ends when the client is closed, and Close
// waits for f to return, for 1.5 s at most. Once the client has been closed, Background does
// nothing and returns false.
func (c *Client) Background(f func(ctx context.Context)) bool {
	c.ending.Lock()
	defer c.ending.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.wg.Go(func() {
		defer c.guard.rescue("a function in the background")
		f(c.ctx)
	})
	return true
}

// agent names this implementation to peers.
const agent = "yodel-go/0.1"
