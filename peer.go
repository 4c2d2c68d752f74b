// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// A Peer is the other side of a connection. A Peer is a Caller: calls to it go over this same
// connection. A server gets its clients from Server.Peers, and a handler gets its caller from
// Call.Peer.
//
// There is one Peer for the lifetime of a connection. Its methods may be called concurrently. Calls
// to a Peer pass through ServerOptions.PeerMiddleware and PeerObservers. They use this connection
// only, and fail if the connection ends. A client that speaks another protocol takes no calls from
// the server, or one-way calls only: see Session.Push.
type Peer struct {
	// Addr is the peer's network address.
	Addr net.Addr
	// Conn is the connection. A program that reads from it, writes to it or closes it breaks the
	// calls on it.
	Conn net.Conn
	// Metadata is the metadata that the peer sent when it connected: ClientOptions.ConnMetadata on
	// the server, nil on the client. It must not be changed.
	Metadata Metadata
	// Agent is the name and version of the peer's implementation, for people to read.
	Agent string
	// Name is the name under which the peer calls: see ClientOptions.Name. It is empty if the peer
	// did not say. Any peer can use any name, so it is for statistics only.
	Name string

	link     *mux.Conn       // nil before the handshake, and in other protocols
	ended    <-chan struct{} // closed when a session in another protocol has ended; nil otherwise
	push     Caller          // takes the one-way calls of a session in another protocol; may be nil
	requests *requester
	deciding atomic.Bool // the Connect hook is running
}

// Peer returns, on the server, the caller of the call. Calls to that Peer go back over the
// connection on which this call came. On the client Peer returns nil.
func (c *Call) Peer() *Peer {
	if c.in == nil {
		return nil
	}
	return c.in.peer
}

// TLS returns the TLS state of the connection, or nil without TLS.
func (p *Peer) TLS() *tls.ConnectionState {
	c, ok := p.Conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil
	}
	state := c.ConnectionState()
	return &state
}

// Done returns a channel that is closed when the connection has ended.
func (p *Peer) Done() <-chan struct{} {
	if p.link == nil {
		return p.ended
	}
	return p.link.Ended()
}

// Do calls a method of the peer and waits for the reply. The call is sent once, on this connection.
// It fails if it cannot be sent there. The caller may use call again afterwards.
func (p *Peer) Do(ctx context.Context, call *Call) error {
	if p.link == nil && p.push == nil {
		return p.unconnected(call)
	}
	q := p.requests
	o := q.take()
	o.peer = p
	o.begin(ctx, call)
	err := q.conclude(ctx, call, q.peers.handler(ctx, call))
	o.end(call)
	q.give(o)
	return err
}

// call is Do for a call with only a request and a reply. It allocates nothing.
func (p *Peer) call(ctx context.Context, method string, in, out any) error {
	if p.link == nil {
		return p.unconnected(&Call{Method: method})
	}
	q := p.requests
	o := q.take()
	o.peer = p
	call := o.fill(method, in, out, false)
	call.inherit(ctx)
	err := q.conclude(ctx, call, q.peers.handler(ctx, call))
	q.give(o)
	return err
}

// Go sends a call without waiting for the reply. It calls done, which may be nil, when the call has
// ended. Until then the call, and all memory to which it points, belong to the connection. Go waits
// while more calls are open than the limits allow.
//
// The connection calls done exactly once. Done should be short, because it usually runs on the
// goroutine that reads the connection. Done runs on another goroutine if there is PeerMiddleware,
// or if the call could not be sent. For a one-way call, Go calls done before it returns. Callbacks
// may run concurrently.
func (p *Peer) Go(ctx context.Context, call *Call, done func(error)) {
	if p.link == nil {
		callback(done).Ended(p.Do(ctx, call))
		return
	}
	q := p.requests
	if q.peers.wraps {
		q.doElsewhere(ctx, p, call, callback(done))
		return
	}
	o := q.take()
	o.peer = p
	o.begin(ctx, call)
	q.start(ctx, o, call, callback(done))
}

// A peerPath has the middleware and the observers through which calls to peers pass.
type peerPath struct {
	handler  Handler
	watchers watchers
	wraps    bool // there is middleware
}

// toPeer is the handler below the middleware. It makes an attempt of a call to a peer.
func toPeer(ctx context.Context, call *Call) error {
	o := call.out
	if o == nil || o.peer == nil {
		return Errorf(Internal, "%s: middleware made a call that no Peer has begun; use Peer.Do", call.Method)
	}
	o.began = clock()
	o.req.Now = o.began
	if o.peer.push != nil {
		return o.peer.explain(ctx, call, o.peer.pushed(ctx, call))
	}
	return o.peer.after(ctx, call, o.peer.once(ctx, call))
}

// pushed makes an attempt of a call to a peer in another protocol.
func (p *Peer) pushed(ctx context.Context, call *Call) (err error) {
	q := p.requests
	if err = p.check(ctx, call); err != nil {
		return err
	}
	if !call.OneWay || call.stream != nil {
		return refusal("YDL2010", "%s: the peer's protocol takes only one-way calls from a server", call.Method)
	}
	if ctx.Err() != nil {
		return &mux.CallError{Cause: context.Cause(ctx), NotProcessed: true}
	}
	b := q.binding(call)
	if b == nil {
		return tooLongName(call)
	}
	if e := unsendable(call, b, nil); e != nil {
		return e
	}
	call.Attempt++
	call.out.renew(call)
	if q.watches {
		defer func() { q.watchAttempt(ctx, call, err) }()
	}
	return unsentByLink(p.push.Do(ctx, call))
}

// after ends an attempt that failed with err, or that succeeded if err is nil. It makes another
// attempt if the peer refused the call only because the call was not marked as nested.
func (p *Peer) after(ctx context.Context, call *Call, err error) error {
	if err == nil {
		return nil
	}
	if call.out.req.Now = 0; p.again(ctx, call, err) {
		err = p.once(ctx, call)
	}
	return p.explain(ctx, call, err)
}

func (p *Peer) once(ctx context.Context, call *Call) error {
	conn, err := p.begin(ctx, call)
	if err != nil {
		return err
	}
	return p.requests.send(ctx, call, conn, nil, nil)
}

// begin begins an attempt.
func (p *Peer) begin(ctx context.Context, call *Call) (*mux.Conn, error) {
	if err := p.check(ctx, call); err != nil {
		return nil, err
	}
	_, err := p.requests.begin(ctx, call, nil, nil)
	return p.link, err
}

// again reports whether a call that failed with err is sent again, marked as nested. A draining
// peer refuses new calls, but accepts nested calls. A nested call is one that a handler on this
// side makes while it serves that peer.
func (p *Peer) again(ctx context.Context, call *Call, err error) bool {
	e, ok := err.(*Error) //nolint:errorlint // as send returns it
	if !ok || !e.is(catalogue.Draining) || !e.NotProcessed || call.out.req.Nest || mux.ConnOf(ctx) != p.link {
		return false
	}
	call.out.req.Nest = true
	return true
}

// check prepares a call for this peer. It returns an error if the call cannot be sent.
func (p *Peer) check(ctx context.Context, call *Call) error {
	call.Endpoint, call.picked = nil, nil
	switch {
	case call.Method == "":
		return refusal("YDL2001", "a call without a method name")
	case p.deciding.Load() && !call.OneWay && ctx.Value(connectKey{}) == p:
		return refusal("YDL4005", "%s: the Connect hook calls %v, which is not heard before the hook has returned", call.Method, p.Addr)
	}
	return nil
}

// explain turns an error of the connection into an Error and records the attempt.
func (p *Peer) explain(ctx context.Context, call *Call, err error) error {
	if err == nil {
		return nil
	}
	err = p.requests.explainAt(ctx, call, p.Addr.String(), err)
	if call.out.readExtra().lent > 0 && NotProcessed(err) {
		call.out.repay(call, 0)
	}
	began := call.out.began
	if began == 0 {
		began = call.start()
	}
	if call.Attempt > call.out.readExtra().Counted { // the attempt was sent
		call.out.record(call, err, began)
	}
	return err
}

func (p *Peer) unconnected(call *Call) error {
	if p.ended != nil {
		return refusal("YDL2010", "%s: the peer's protocol takes no calls from a server", call.Method)
	}
	return refusal("YDL1104", "%s: the peer has no connection; it was not executed", call.Method)
}

// connectKey is the context key of the peer that ServerOptions.Connect decides about.
type connectKey struct{}

// Peers returns the peers that are connected and have completed the handshake, in no particular
// order. They are the clients of this server, and the servers to which clients with this server in
// their options are connected.
//
//	for _, peer := range server.Peers() {
//		if err := News.Notify(ctx, peer, &item); err != nil { … } // it has disconnected meanwhile
//	}
func (s *Server) Peers() []*Peer {
	var peers []*Peer
	for _, c := range s.conns.All() {
		if peer := c.visible(); peer != nil {
			peers = append(peers, peer)
		}
	}
	for _, sc := range s.lent.Conns() {
		peers = append(peers, sc.peer)
	}
	return peers
}

// connect calls the Connect hook for a peer that has completed the handshake. It returns the reason
// for a refusal, or nil.
func (s *Server) connect(peer *Peer) error {
	hook := s.opts.Connect
	if hook == nil {
		return nil
	}
	peer.deciding.Store(true)
	defer peer.deciding.Store(false)
	ctx := context.WithValue(context.Background(), connectKey{}, peer)
	return s.guard.Apart("the Connect hook", nil, func() error { return hook(ctx, peer) })
}

// link returns the serverConn of a new connection if the client's options have a Server, and nil
// otherwise.
func (c *Client) link(nc net.Conn) *serverConn {
	s := c.opts.Server
	if s == nil {
		return nil
	}
	return &serverConn{server: s, dialled: true, peer: &Peer{Addr: c.guard.Conn(nc).RemoteAddr(), Conn: nc, requests: &c.requester}, keys: s.keyScope()}
}
