// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/ordered"
	"github.com/yodel-rpc/yodel/introspect"
)

// ClientOptions configures a Client. The zero value works.
type ClientOptions struct {
	// Codec encodes the messages of calls without a codec of their own. Default JSON.
	Codec Codec
	// Compressor compresses the requests and replies of calls without a compressor of their own.
	// Default none.
	Compressor compress.Compressor
	// CompressAbove is the size from which messages are compressed, in bytes. Default 1024.
	CompressAbove int
	// Wires let the client call servers that speak other protocols: see
	// discovery.Instance.Protocols. Default none.
	Wires []Wire
	// Transport connects to instances. Default TCP.
	Transport Transport
	// Balancer chooses among instances. Default RoundRobin.
	Balancer Balancer
	// Middleware wraps each call once, above the balancer; the first one is outermost. With any
	// middleware, each asynchronous call takes a goroutine. Default none.
	Middleware []Middleware
	// EndpointMiddleware wraps each attempt, below the balancer. Default none.
	EndpointMiddleware []EndpointMiddleware
	// Observers watch calls, outside of all middleware. Default none.
	Observers []Observer
	// CountCalls makes the client count the calls of each method, with their outcome, duration,
	// bytes and extra attempts, for Client.Stats. Calls to Peers are not counted. Counting
	// allocates nothing, and takes 1 to 3 % of the processor time of the shortest calls. Default
	// false.
	CountCalls bool
	// SlowAfter is the duration from which a successful call is slow, so that a record of it is
	// kept: see Call.Report and Client.Samples. For a unary call the duration is the time from the
	// moment the caller made the call until the reply came. For a stream it is the time until the
	// server accepted the stream. Default 1 s; if negative, no call is slow.
	SlowAfter time.Duration
	// Idempotent names methods that may be executed twice, as Call.Idempotent does for one call.
	// Default none.
	Idempotent []string
	// Timeout limits the duration of calls without a stream whose Call.Deadline is not set, and
	// StreamTimeout that of calls with a stream, until the stream has ended. Default none.
	Timeout, StreamTimeout time.Duration
	// DialTimeout limits each attempt to connect, and the wait for the first set of instances.
	// Default 3 s.
	DialTimeout time.Duration
	// ConnsPerEndpoint is the largest number of connections to one instance. One is the fastest for
	// most loads, because many calls share each write. The client opens another connection when all
	// existing connections are saturated: callers wait for the server's window, or for earlier
	// frames to be written. It closes an additional connection that has been idle for
	// Limits.IdleTimeout, or for 30 s if IdleTimeout is not set. Default 1.
	ConnsPerEndpoint int
	// FixedConns makes the client open ConnsPerEndpoint connections with its first calls to each
	// instance, spread the calls over them, and replace those that end. Default false.
	FixedConns bool
	// ConnMetadata is sent to the server once per connection, for example a token or a name.
	// Default none.
	ConnMetadata Metadata
	// Name is the name of the caller in the statistics of servers. Servers get it with yodel's own
	// protocol and with those over HTTP. It has at most 64 bytes; letters, digits and
	// "!#$%&'*+-.^_`|~" stay, and other characters become "-". Default: the name of the program's
	// file.
	Name string
	// NoWait makes calls fail at once when a connection's limits are reached, instead of waiting:
	// the server's window, Limits.MaxOpen, Limits.MaxMemory or Limits.MaxUnsent. Default false.
	NoWait bool
	// Checksum adds a CRC-32C to each message in both directions. Default false, because TCP and
	// TLS have checksums of their own.
	Checksum bool
	// Server executes calls that connected servers make to this client, over the client's own
	// connections: see Server.Peers and Call.Peer. The server need not listen. Its Accept, OnConn
	// and MaxConns apply to its listeners only. Its limits on open requests apply to the incoming
	// calls. Its MaxMemory and Limits.MaxMemory apply to all memory that these connections hold.
	// Default none.
	Server *Server
	// MaxMemory is how many bytes all servers together can make the client hold, like
	// ServerOptions.MaxMemory for a server. A reply counts until it has arrived completely, and
	// while it is being decompressed. If Server is set, that server's limits apply to the
	// connections, and this limit applies to replies while they are being decompressed. Default as
	// for ServerOptions.MaxMemory.
	MaxMemory int
	// Limits limits the resources that one connection may use.
	Limits Limits
	// OnConn is called with each connection event. It must return soon, and may close the client.
	// Default none.
	OnConn func(introspect.ConnEvent)
	// Logger gets messages about problems that do not make a call fail. Default slog.Default().
	Logger *slog.Logger
}

// A Client calls methods of one service on all its instances. It connects when the first call needs
// a connection, and remains connected. Its methods may be called concurrently. Make one Client per
// service and keep it.
type Client struct {
	requester
	opts    ClientOptions
	handler Handler // observers, middleware, balance
	wraps   bool    // there is Middleware, which may take time
	direct  bool    // no middleware runs between Go and the connection
	config  mux.Config
	cluster *cluster
	wires   []Wire   // the first, of yodel's own protocol, is nil
	speaks  []string // the names of their protocols
	refresh func()   // the resolver's Refresh method; nil if it has none
	orders  ordered.Queues[*Endpoint, *mux.Conn]

	toldKeys atomic.Bool // the log has said that a server does not remember keys

	ctx     context.Context //nolint:containedctx // canceled by Close
	closing <-chan struct{}
	born    time.Duration // when the client was made, on the clock
	cancel  context.CancelFunc
	shut    atomic.Bool // Close has been called
	ending  sync.Mutex  // guards cancel
	wg      sync.WaitGroup
	hooks   guard.Hooks
	left    chan struct{} // closed when Close has returned for the first time

	server atomic.Pointer[Server] // the first server with live data whose handlers use it
	events diagnose.Early
}

// Close closes the client and fails the calls in flight. Connections end within a second. Hooks and
// callbacks may call Close, because it waits at most 1.5 s for them to return.
func (c *Client) Close() {
	c.hooks.Release()
	if c.shut.Swap(true) {
		waitFor(c.left, closeTime)
		return
	}
	defer close(c.left)
	c.ending.Lock() // Background starts no function after this
	c.cancel()
	c.ending.Unlock()
	if s := c.server.Load(); s != nil {
		s.live.Leave(c)
	}
	ended := make(chan struct{})
	go func() {
		c.cluster.list.Close()
		c.wg.Wait()
		c.config.Pool.Close()
		close(ended)
	}()
	waitFor(ended, closeTime)
	if c.opts.Server != nil {
		c.opts.Server.lent.RemovePool(c.config.Pool)
	}
}

// closeTime limits how long Close waits for running hooks and callbacks. Without a limit, Close
// could wait for ever, because one of them may have called Close. Connections end within a second.
const closeTime = 1500 * time.Millisecond

// waitFor waits for ch to be closed, for at most d.
func waitFor(ch <-chan struct{}, d time.Duration) {
	select {
	case <-ch:
	case <-time.After(d):
	}
}

// Endpoints returns the current set of endpoints.
func (c *Client) Endpoints() []*Endpoint { return c.cluster.endpoints() }

// Several reports whether a call could go to another endpoint: the client has more than one
// endpoint, or the resolver has not reported a set yet.
func (c *Client) Several() bool {
	set := c.cluster.set.Load()
	return set == nil || len(set.endpoints) > 1
}

// Ready connects and waits until at least one instance is connected. It returns an error that
// explains the reason if there is no instance, if no instance can be connected to, or if ctx ends
// first.
func (c *Client) Ready(ctx context.Context) error { return c.cluster.ready(ctx) }

// Call calls a method and waits for the reply. In is a pointer to the request, and out is a pointer
// to the variable that the reply replaces. If Call fails, the variable may hold anything. Both may
// be Values, and out may be nil. Call itself allocates no memory. Do has more options.
func (c *Client) Call(ctx context.Context, method string, in, out any) error {
	return c.do(ctx, method, in, out, false)
}

// do is Call and Notify.
func (c *Client) do(ctx context.Context, method string, in, out any, oneWay bool) error {
	if c == nil || ctx == nil {
		return missing(ctx, method)
	}
	o := c.take()
	call := o.fill(method, in, out, oneWay)
	call.inherit(ctx)
	c.timeout(call)
	err := c.conclude(ctx, call, c.handler(ctx, call))
	c.give(o)
	return err
}

// Do sends a call and waits for the reply. The caller may use call again afterwards.
func (c *Client) Do(ctx context.Context, call *Call) error {
	if c == nil || ctx == nil {
		return missing(ctx, call.Method)
	}
	if call.Ordered {
		return c.doOrdered(ctx, call)
	}
	o := c.take()
	o.begin(ctx, call)
	c.timeout(call)
	err := c.conclude(ctx, call, c.handler(ctx, call))
	o.end(call)
	c.give(o)
	return err
}

// Notify sends a request that gets no reply. It returns when the request is queued for sending.
func (c *Client) Notify(ctx context.Context, method string, in any) error {
	return c.do(ctx, method, in, nil, true)
}

// missing returns the error of a call without a client or a context.
//
//go:noinline
func missing(ctx context.Context, method string) error {
	if ctx == nil {
		return refusal("YDL2008", "%s: the context is nil", method)
	}
	return refusal("YDL2008", "%s: the client is nil", method)
}

// timeout sets the deadline of a call. It also reads the clock if middleware may need the start.
func (c *Client) timeout(call *Call) {
	limit := c.opts.Timeout
	if call.stream != nil {
		limit = c.opts.StreamTimeout
	}
	if limit > 0 && call.Deadline.IsZero() {
		call.Deadline, call.limited = timeOf(call.made()+limit), true
	} else if c.wraps {
		call.made()
	}
}

// Go sends a call without waiting for the reply. It calls done, which may be nil, when the call has
// ended. Until then the call, and all memory to which it points, belong to the client.
//
// The client calls done exactly once. Done should be short, because it usually runs on the
// goroutine that reads the connection. Done runs on another goroutine if the client has middleware,
// or if the call could not be sent at once on an existing connection. For a one-way call, and for a
// call that cannot be sent, Go calls done before it returns. Go may also call done before it
// returns while too many calls are open, in a handler, or after ctx has ended. Callbacks of one
// client may run concurrently.
//
// A panic of done is logged. A panic of other user code in the call, such as a codec, is logged
// too, and done gets an error (YDL5004).
//
// Go waits while more calls are open than the limits allow. With middleware, each call takes a
// goroutine.
func (c *Client) Go(ctx context.Context, call *Call, done func(error)) {
	if c == nil || ctx == nil {
		callback(done).Ended(missing(ctx, call.Method))
		return
	}
	if call.Ordered {
		c.goOrdered(ctx, call, done)
		return
	}
	if !c.direct {
		c.doElsewhere(ctx, c, call, callback(done))
		return
	}
	o := c.take()
	o.begin(ctx, call)
	c.timeout(call)
	c.start(ctx, o, call, callback(done))
}

// then is Go for a call with only a request and a reply.
func (c *Client) then(ctx context.Context, method string, in, out any, done ender) {
	if c == nil || ctx == nil {
		done.Ended(missing(ctx, method))
		return
	}
	if !c.direct {
		c.doElsewhere(ctx, c, &Call{Method: method, Args: in, Reply: out}, done)
		return
	}
	o := c.take()
	call := o.fill(method, in, out, false)
	call.inherit(ctx)
	c.timeout(call)
	c.start(ctx, o, call, done)
}

// Background runs f on a goroutine of the client and returns true. F's ctx ends when the client is
// closed. Close waits at most 1.5 s for f to return. On a closed client, Background returns false
// without calling f.
func (c *Client) Background(f func(ctx context.Context)) bool {
	c.ending.Lock()
	defer c.ending.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.wg.Go(func() {
		defer c.guard.Rescue("a function in the background")
		f(c.ctx)
	})
	return true
}

// agent names this implementation to peers.
const agent = "yodel-go/0.1"

// Limits returns the limits of the client with their defaults. A field is zero only if zero means
// never.
func (c *Client) Limits() Limits { return c.limits }
