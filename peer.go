// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// A Peer is the other side of a connection. It is a Caller: its methods are those that it serves on
// this very connection. A server finds its clients with Server.Peers, and a handler its caller with
// Call.Peer.
//
// It is one object for as long as the connection lasts, and may be used concurrently. Calls to it
// pass no middleware and no balancer of this side: they go over this connection, or fail.
type Peer struct {
	// Addr is the peer's network address.
	Addr net.Addr
	// Conn is the connection. Reading from it, writing to it or closing it breaks the calls on it.
	Conn net.Conn
	// Metadata is what the peer said of itself when it connected: ClientOptions.ConnMetadata on the
	// server, nothing on the client. It must not be changed.
	Metadata Metadata
	// Agent is the peer's implementation and version, for people.
	Agent string

	link     *mux.Conn       // nil until the peer has said who it is, and in other protocols
	ended    <-chan struct{} // closed when a session in another protocol has ended; nil for none
	requests *requester
	deciding atomic.Bool // the Connect hook runs
}

// TLS returns the state of the connection's TLS, or nil if it has none.
func (p *Peer) TLS() *tls.ConnectionState {
	c, ok := p.Conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil
	}
	state := c.ConnectionState()
	return &state
}

// Done is closed when the connection has ended.
func (p *Peer) Done() <-chan struct{} {
	if p.link == nil {
		return p.ended
	}
	return p.link.Ended()
}

// Do carries out a call of a method of the peer. It is sent once: what cannot be sent on this
// connection fails. The call may be used again afterwards.
func (p *Peer) Do(ctx context.Context, call *Call) error {
	if p.link == nil {
		return p.unconnected(call)
	}
	o := p.requests.take()
	call.begin(ctx, o)
	err := p.requests.conclude(ctx, call, p.attempt(ctx, call))
	call.end()
	p.requests.give(o)
	return err
}

// call is Do for a method with a request and a reply and nothing else. It allocates nothing.
func (p *Peer) call(ctx context.Context, method string, in, out any) error {
	if p.link == nil {
		return p.unconnected(&Call{Method: method})
	}
	o := p.requests.take()
	call := &o.call
	call.Method, call.Args, call.Reply, call.out = method, in, out, o
	call.inherit(ctx)
	err := p.requests.conclude(ctx, call, p.attempt(ctx, call))
	p.requests.give(o)
	return err
}

// Go carries out a call without waiting for the reply, and calls done, which may be nil, when it
// has ended. The call, and what it points to, belong to the connection until then. When more calls
// are open than the limits allow, Go waits.
//
// Done is called exactly once. It usually runs on the goroutine that reads the connection, so it
// should be short. It runs on another goroutine if the call could not be sent, and Go calls it
// before it returns for a one-way call. Callbacks may run concurrently.
func (p *Peer) Go(ctx context.Context, call *Call, done func(error)) {
	if p.link == nil {
		callback(done).ended(p.unconnected(call))
		return
	}
	o := p.requests.take()
	call.begin(ctx, o)
	o.ctx, o.async, o.done = ctx, call, callback(done)
	prepared := false
	defer func() {
		if !prepared { // because of a codec
			p.finish(o, p.requests.guard.interrupted(ctx, call.Method, recover()))
		}
	}()
	err := p.check(ctx, call)
	if err == nil {
		err = p.requests.prepare(ctx, o, call)
	}
	prepared = true
	switch {
	case err != nil:
	case call.OneWay:
		err = p.link.Notify(ctx, &o.req)
	default:
		if err = p.link.Start(ctx, &o.req, o); err == nil {
			return
		}
	}
	if err != nil {
		go p.finish(o, err) // done may begin another call, which fails in the same way
		return
	}
	p.finish(o, nil)
}

func (p *Peer) attempt(ctx context.Context, call *Call) error {
	o := call.out
	o.began = clock()
	o.req.Now = o.began
	err := p.once(ctx, call)
	if p.again(ctx, call, err) {
		o.req.Now = 0
		err = p.once(ctx, call)
	}
	return p.explain(ctx, call, err)
}

func (p *Peer) once(ctx context.Context, call *Call) error {
	if err := p.check(ctx, call); err != nil {
		return err
	}
	return p.requests.attempt(ctx, call, p.link, nil)
}

// again reports whether a call that failed with err is sent again: a peer that shuts down still
// takes what the calls need that it has open itself, if it is told that this is such a call.
func (p *Peer) again(ctx context.Context, call *Call, err error) bool {
	e, ok := err.(*Error) //nolint:errorlint // as send returns it
	if !ok || !e.is(catalogue.Draining) || !e.NotProcessed || call.out.req.Nest || mux.ConnOf(ctx) != p.link {
		return false
	}
	call.out.req.Nest = true
	return true
}

// check readies a call for this peer, if it can be sent there.
func (p *Peer) check(ctx context.Context, call *Call) error {
	call.Endpoint, call.picked, call.out.peer = nil, nil, p
	switch {
	case call.Method == "":
		return refusal("YDL2001", "a call without a method name")
	case p.deciding.Load() && !call.OneWay && ctx.Value(connectKey{}) == p:
		return refusal("YDL4005", "%s: the Connect hook calls %v, which is not heard before the hook has returned", call.Method, p.Addr)
	}
	return nil
}

// complete ends an asynchronous call.
func (p *Peer) complete(o *outgoing, a *mux.Answer, err error) {
	known := false
	defer func() {
		if value := recover(); !known { // a codec
			err = p.requests.guard.interrupted(o.ctx, o.async.Method, value)
		}
		if p.again(o.ctx, o.async, err) {
			go p.onceMore(o)
			return
		}
		p.finish(o, err)
	}()
	if err == nil {
		err = p.requests.decode(o, o.async, a)
	}
	known = true
}

// onceMore sends an asynchronous call again.
func (p *Peer) onceMore(o *outgoing) {
	known, err := false, error(nil)
	defer func() {
		if value := recover(); !known {
			err = p.requests.guard.interrupted(o.ctx, o.async.Method, value)
		}
		p.finish(o, err)
	}()
	err = p.once(o.ctx, o.async)
	known = true
}

// finish tells the asynchronous caller, and gives o back.
func (p *Peer) finish(o *outgoing, err error) {
	call, done := o.async, o.done
	err = p.requests.conclude(o.ctx, call, p.explain(o.ctx, call, err))
	call.end()
	p.requests.give(o)
	p.requests.guard.tell(done, err)
}

// explain makes what the connection says an Error.
func (p *Peer) explain(ctx context.Context, call *Call, err error) error {
	if err == nil {
		return nil
	}
	err = p.requests.explainAt(ctx, call, p.Addr.String(), err)
	if call.out.lent > 0 && NotProcessed(err) {
		call.out.repay(call, 0)
	}
	began := call.out.began
	if began == 0 {
		began = call.start()
	}
	if call.Attempt > call.out.counted { // it came to sending it
		call.record(err, began)
	}
	return err
}

func (p *Peer) unconnected(call *Call) error {
	if p.ended != nil {
		return refusal("YDL2010", "%s: the peer's protocol takes no calls from a server", call.Method)
	}
	return refusal("YDL1104", "%s: the peer has no connection; it was not executed", call.Method)
}

// connectKey finds in the context of ServerOptions.Connect the peer that it decides about.
type connectKey struct{}

// Peers returns the peers that are connected now and have said who they are: the clients of this
// server, and the servers that clients with this server in their options are connected to. They
// come in no order.
//
//	for _, peer := range server.Peers() {
//		if err := News.Notify(ctx, peer, &item); err != nil { … } // it has gone meanwhile
//	}
func (s *Server) Peers() []*Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	peers := make([]*Peer, 0, len(s.conns)+len(s.links))
	for c := range s.conns {
		if peer := c.visible(); peer != nil {
			peers = append(peers, peer)
		}
	}
	for sc := range s.links {
		peers = append(peers, sc.peer)
	}
	return peers
}

// connect asks the Connect hook about a peer that has said who it is. It returns why it is not let
// in, or nil.
func (s *Server) connect(peer *Peer) error {
	hook := s.opts.Connect
	if hook == nil {
		return nil
	}
	peer.deciding.Store(true)
	defer peer.deciding.Store(false)
	ctx := context.WithValue(context.Background(), connectKey{}, peer)
	return s.guard.apart("the Connect hook", nil, func() error { return hook(ctx, peer) })
}

// lend makes the methods of the server served on connections with this config, which a client is
// about to make: what comes in keeps to the limits of the server, what goes out to those of the
// client.
func (s *Server) lend(config *mux.Config) {
	config.OwnOpen, config.OwnOpenBytes = config.MaxOpen, config.MaxOpenBytes
	limits := s.limits.mux()
	config.MaxOpen, config.MaxOpenBytes, config.MaxMemory = limits.MaxOpen, limits.MaxOpenBytes, limits.MaxMemory
	config.Budget, config.Memory = s.budget, s.memory
	config.Incarnation, config.Services = s.config.Incarnation, s.config.Services
	if s.opts.Keys != nil {
		config.Keys = func(conn *mux.Conn) (string, time.Duration) {
			keys := whose(conn).served.keys
			return keys.name, keys.keep
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[config.Pool] = struct{}{}
}

// takeBack ends that.
func (s *Server) takeBack(pool *mux.Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pools, pool)
}

// link returns what a new connection of the client is to the Server in its options, or nil without
// one.
func (c *Client) link(nc net.Conn) *serverConn {
	s := c.opts.Server
	if s == nil {
		return nil
	}
	return &serverConn{server: s, dialled: true, peer: &Peer{Addr: nc.RemoteAddr(), Conn: nc, requests: &c.requester}, keys: s.keyScope()}
}
