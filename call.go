// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/foreign"
	"github.com/yodel-rpc/yodel/internal/heritage"
	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Call is one request and its reply. It passes down a chain of handlers and back.
//
// On the client, the caller fills it in and Client.Do sends it. On the server, the framework fills
// it in from the request, and the handler gets it with CallFrom.
//
// The fields and methods are in four groups:
//
//   - Fields that the caller sets, from Method to Trace, and Endpoint. Most calls need only Method,
//     Args and Reply. The handler reads these fields.
//   - Fields and methods that the caller reads when the call has ended: Header, Trailer,
//     ReplyAttachment, Attempt, Endpoint and Report. On the server, the handler sets Trailer and
//     ReplyAttachment, and calls SetHeader and SendHeader. The handler reads Peer and Draining, and
//     observers read Took, Queued and Traffic.
//   - Methods for middleware. Attempts has those that control how a client sends the call, for
//     middleware of clients and for pickers. Decode, DecodeInto, Body, Executed and KeyAge are for
//     middleware and handlers of a server. Client, EachMessage, Encode, Encoding, Request, Answer,
//     Streams, State, Note and Now are for middleware of either side.
//   - Methods for the Do of a Link: Kind, Compressing, AppendArgs, TakeReply and Converse.
//
// A Call belongs to one goroutine at a time. Middleware and observers must not keep a Call after
// they have returned, because the framework reuses the Calls of a server, of Client.Call and of
// Method.Call.
type Call struct {
	// Fields that the caller sets.

	// Method is the name of the method on the wire, for example "Arith.Mul".
	Method string

	// Args is the request: a pointer to a message, or Values for a method with several arguments.
	// On the server it is nil until Decode, which the method calls after all middleware has run.
	Args any

	// Reply receives the reply on the client: a pointer, or Values of pointers. A nil Reply
	// discards the reply's body. On the server it is the value that the method returned.
	Reply any

	// Metadata travels with the request. The framework never changes a map that the user made. On
	// the server the map belongs to the call and is reused with it.
	Metadata Metadata

	// Attachment is raw bytes in addition to the encoded request. On the server it is valid until
	// the handler returns.
	Attachment []byte

	// Deadline ends the call, in addition to the deadline of its context. It travels to the server.
	// Zero means no deadline.
	Deadline time.Time

	// Codec encodes the request and the reply. Nil means the client's codec.
	Codec Codec

	// Compressor compresses the request and the reply. Nil means the client's compressor.
	Compressor compress.Compressor

	// Key is the key for consistent hashing and for ordered calls.
	Key string

	// IdempotencyKey identifies the intent behind the call: two calls with the same key have the
	// same intent. A server with ServerOptions.Keys executes the method once for each key that it
	// remembers. If a call may have been executed, the client sends it again only to servers that
	// remember its key. A server without ServerOptions.Keys executes every request. A key does not
	// make a stream repeatable.
	IdempotencyKey string

	// Ordered keeps calls in order. Ordered calls of one Client with the same Key begin and return
	// one after the other, in the order in which they were made. Other calls run in parallel.
	// Ordered calls with an empty Key are ordered among themselves. An ordered call is sent without
	// waiting for the reply of the previous one. Callbacks run one after the other. A call that its
	// caller cancels returns at once. On the server, Ordered says that the client ordered the call.
	//
	// Retries keep the order. A call that is sent again keeps its place. A call is not sent again
	// if it and a later call of its key may both have been executed. If a connection is lost and it
	// is unknown whether a call was executed, the later calls that were not sent and were made
	// before its caller is told fail with YDL1009. They were certainly not executed. Calls that are
	// made afterwards start a new order.
	//
	// Ordered calls must not be hedged. A handler must not make an ordered call to its own server
	// with the key that it is serving. Streams and calls to a Peer are not ordered. Default false.
	Ordered bool

	// Idempotent says that executing the call twice does no harm. A call that may have been
	// executed is sent again only if it is idempotent or its IdempotencyKey is remembered. A server
	// can declare a method idempotent too. ClientOptions.Idempotent names idempotent methods for
	// all calls of a client.
	Idempotent bool

	// NoWait makes the call fail at once when the connection's limits are reached, instead of
	// waiting. ClientOptions.NoWait does the same for all calls.
	NoWait bool

	// OneWay asks for no reply. Do returns when the request is queued for sending, and the caller
	// never learns whether the request was executed. The context of its handler ends 30 s after the
	// client has disconnected. If the server has many such calls, it ends after half a second.
	// While the number of one-way calls that run on a connection is at the server's limit, the
	// server reads no other calls from that connection. So do not send many one-way calls to a slow
	// method.
	OneWay bool

	// Explain asks for a record of the call even if it succeeds and is not slow: see Report. It
	// travels with the request and down the call tree. The server then returns its share of the
	// time and keeps a record as well. On the server, Explain says that the caller asked for it.
	Explain bool

	// Budget is the attempt budget of the call tree: how many attempts may be made in all for this
	// call, for the calls that its handlers make, and for the calls below them. When it is used up,
	// no caller in the tree retries. See Attempts.Take. A call made with a handler's context shares
	// the rest of that handler's budget and ignores this field. On the server, Budget is the budget
	// that came with the request. Zero means no limit.
	Budget int

	// Criticality is the priority by which an overloaded server chooses the calls that it executes.
	// Package criticality has the classes. Criticality travels with the request and down the call
	// tree. Zero is normal.
	Criticality int

	// Tenant names the customer on whose behalf the call is made. Limiters use it to share capacity
	// fairly. It travels with the request and down the call tree.
	Tenant string

	// Trace is the trace context of the call: a traceparent as in the W3C recommendation Trace
	// Context, which a space and a tracestate may follow. Yodel only carries it. A call that a
	// handler makes with its own context has the trace of the handler's call, unless Trace is set.
	// An observer or middleware sets Trace to the trace context of its own span.
	Trace string

	// Fields that the caller reads when the call has ended. On the server, the handler sets Trailer
	// and ReplyAttachment.

	// Trailer travels with the reply or the error. The server sets it, and the client reads it.
	Trailer Metadata

	// ReplyAttachment is raw bytes in addition to the encoded reply.
	ReplyAttachment []byte

	// Attempt is how often the request was sent before, starting at 0.
	Attempt int

	// Endpoint is the endpoint of this attempt, which the balancer sets. If Endpoint is set before
	// the balancer runs, the call is pinned to that endpoint. Nil on the server.
	Endpoint *Endpoint

	// The client writes Attempt, Endpoint, out and picked in each call. They stand together,
	// because the goroutine that reads replies may run on another processor: see TestLayout.

	out       *outgoing          // on the calling side: the state that Do gave the call
	picked    *Endpoint          // the endpoint that the balancer set
	turn      *turn              // client: its place in the order of its key; nil if it is not ordered
	pass      int8               // the pass of the pick, see avoidUnready
	stays     bool               // all attempts go to picked, see Attempts.Pin
	demands   uint8              // how many endpoints its pick has started to dial
	limited   bool               // the client set Deadline
	inherited heritage.Inherited // the fields that were inherited from the handler's call
	in        *serverCall        // on the serving side: the state of the request
	tried     []*Endpoint        // endpoints this call avoids
	stream    *outgoingStream    // client: nil for a unary method

	budget  *budget.Tokens // nil for none
	group   *group         // nil unless it may have forks
	rare    *rareCall      // nil for most calls
	hold    *keyscope.Hold // where its key is remembered; nil for most calls
	resumed *keyscope.Hold // value of hold when the call begins: see Attempts.Resume

	watch watch         // whether observers watch it
	began time.Duration // when the call was made or its observers started, on the clock; 0 until needed
	took  time.Duration // its duration, once it has ended
}

// A purpose is what a copy of a Call is for.
type purpose uint8

const (
	forFork     purpose = iota // attempts at the same time as the call: see Attempts.Forkable
	forDetached                // a call that may continue after the call has ended: see Attempts.Detach
	forResend                  // a one-way call that is sent again after Do has returned: see keep
)

// copyFor makes to a copy of c. It decides for every field of a Call whether the copy gets it. A
// test fails if copyFor has no decision for a field.
func (c *Call) copyFor(p purpose, to *Call) {
	*to = Call{
		Method: c.Method, Codec: c.Codec, Compressor: c.Compressor, Key: c.Key, IdempotencyKey: c.IdempotencyKey,
		Idempotent: c.Idempotent, NoWait: c.NoWait, Criticality: c.Criticality, Tenant: c.Tenant, Trace: c.Trace,
	}
	switch p {
	case forFork: // it may share memory with c, because it ends before c
		to.Args, to.Metadata, to.Attachment, to.Deadline, to.Explain = c.Args, c.Metadata, c.Attachment, c.Deadline, c.Explain
		to.tried, to.hold = c.tried, c.hold
		to.budget, to.watch, to.began = c.tokens(), c.watch, c.made()
	case forDetached: // it begins anew, and shares only the memory of the arguments
		to.Args, to.Metadata, to.Attachment = c.Args, maps.Clone(c.Metadata), slices.Clone(c.Attachment)
		if c.pinned() {
			to.Endpoint = c.Endpoint
		}
		to.Attempts().Resume(c)
		to.hold = to.resumed
		if b := c.tokens(); b != nil && b == &c.out.readExtra().budget { // the memory of b is reused when c has ended
			to.Budget = 1 + int(b.TakeAll())
		} else {
			to.budget = b
		}
	case forResend: // it continues c, without the values of the caller and without a record
		to.Metadata, to.tried = maps.Clone(c.Metadata), slices.Clone(c.tried)
		to.Trailer, to.ReplyAttachment, to.Deadline, to.Endpoint = c.Trailer, c.ReplyAttachment, c.Deadline, c.Endpoint
		to.Ordered, to.OneWay, to.Attempt, to.Budget = c.Ordered, c.OneWay, c.Attempt, c.Budget
		to.out, to.in, to.stream, to.turn, to.group = c.out, c.in, c.stream, c.turn, c.group
		to.picked, to.pass, to.stays, to.demands, to.limited = c.picked, c.pass, c.stays, c.demands, c.limited
		to.budget, to.inherited, to.hold, to.resumed = c.budget, c.inherited, c.hold, c.resumed
		to.watch, to.began, to.took = c.watch, c.began, c.took
	}
}

// SetHeader sets metadata that the server sends before the reply, in protocols that can do so.
// Other protocols, among them yodel's own, send it with the reply, or at the end of a stream. It
// replaces metadata that was set before. A handler calls it before it sends the first message of a
// stream.
func (c *Call) SetHeader(md Metadata) { c.rarely().header = md }

// SendHeader sends the header before the first message of a stream, in protocols that can do so.
// For other protocols, for unary calls, and on the client it does nothing. It fails if the stream
// has ended. It may not be called concurrently with Send.
func (c *Call) SendHeader() error {
	if c.in == nil {
		return nil
	}
	st, ok := c.in.stream.(*foreign.Stream)
	if !ok {
		return nil
	}
	return st.SendHeader()
}

// Header returns the metadata that SetHeader has set. On the client, it is the header of the reply,
// or nil.
func (c *Call) Header() Metadata {
	if c.rare == nil {
		return nil
	}
	return c.rare.header
}

// A watch says whether the observers of a call have started and ended.
type watch uint8

const (
	unwatched watch = iota // no observer has started
	watching
	watched // it has ended
)

// Metadata is key and value pairs that travel with a message. In yodel's own protocol, keys are
// case-sensitive and values are any bytes. Docs/wires.md says what other protocols carry, and what
// becomes of the rest.
type Metadata map[string]string

// Values holds the arguments or the results of a method with several of them. In Call.Args it holds
// the values, in Call.Reply pointers to variables for the results.
//
//	var quotient, remainder int
//	err := client.Call(ctx, "Arith.DivMod", yodel.Values{17, 5}, yodel.Values{&quotient, &remainder})
type Values []any

// A Handler executes a call, or passes it on. Several goroutines may call it at the same time.
type Handler func(ctx context.Context, call *Call) error

// A Middleware wraps a handler with behaviour: timeouts, retries, limits, logs. The Middleware
// function runs once, when the chain is built. The handler that it returns runs for every call, and
// several goroutines may run it at the same time.
type Middleware func(next Handler) Handler

// An EndpointMiddleware is a middleware below the balancer. It runs once for every endpoint, and
// the handler that it returns sees each attempt. State that must outlive a change of the chain
// belongs in ep.State.
type EndpointMiddleware func(ep *Endpoint, next Handler) Handler

// clock reads the monotonic clock, at half the cost of time.Now. timeOf converts a reading.
func clock() time.Duration { return monotime.Now() }

func timeOf(at time.Duration) time.Time { return monotime.Time(at) }

// chain wraps h in ms. The first middleware is the outermost.
func chain(ms []Middleware, h Handler) Handler {
	for _, m := range slices.Backward(ms) {
		h = m(h)
	}
	return h
}

// Streams reports whether the call is a call of a Feed, an Upload or a Duplex. On the server it is
// false if the server has no such method, or if only the method or only the call is for a stream:
// such a call fails without one.
func (c *Call) Streams() bool {
	if c.in != nil {
		return c.in.stream != nil && c.in.method != nil && c.in.method.Kind != wire.Unary
	}
	return c.kind() != wire.Unary
}

// Encoding returns the codec of the call's messages: the call's own codec, or otherwise the codec
// of the client or server of the call. It returns nil if there is none of these.
func (c *Call) Encoding() Codec {
	if q := c.requester(); c.Codec == nil && q != nil {
		return q.codec
	}
	return c.Codec
}

// Compressing returns the compressor of the call's messages: the call's own compressor, or
// otherwise the compressor of the client of the call. It returns nil if there is none of these.
func (c *Call) Compressing() compress.Compressor {
	if q := c.requester(); c.Compressor == nil && q != nil {
		return q.compressor
	}
	return c.Compressor
}

// EachMessage makes f run for each message of the call's stream, before the message is encoded or
// after it was decoded, and on the server for what DecodeInto has decoded. If f returns an error,
// the message goes no further, and Send or Recv returns the error. Middleware calls EachMessage
// before it passes the call on. F may run for a sent and a received message at the same time.
func (c *Call) EachMessage(f func(message any, sent bool) error) {
	r := c.rarely()
	r.each = append(r.each, f)
}

func (r *rareCall) checks() pipe.Checks {
	if r == nil {
		return nil
	}
	return r.each
}

// Client returns the client that makes the call. It is nil for a call to a Peer, and on the server.
func (c *Call) Client() *Client {
	if c.out == nil || c.out.peer != nil {
		return nil
	}
	return c.out.from.client
}

// requester returns the client, or the calls to peers, to which the call belongs. It is nil before
// the call has begun, after its end, and on the server.
func (c *Call) requester() *requester {
	if c.out == nil {
		return nil
	}
	return c.out.from
}

// State returns the value that is stored under key in the client or the server of the call. The
// first time it creates the value with create. Middleware stores state there that it must keep when
// the chain is built again. State may be called concurrently.
func (c *Call) State(key any, create func() any) any {
	q := c.requester()
	switch {
	case c.in != nil:
		q = &c.in.server.calls
	case q == nil:
		return create() // the call has neither a client nor a server
	}
	return q.states.get(key, create)
}

// A rareCall is the part of a call's state that few calls need, mainly for its record.
type rareCall struct {
	record.Record
	nowhere int                    // the number of endpoints when no other endpoint could take the call; 0 before
	report  *introspect.CallReport // the record; until the call has ended, it covers the attempts so far
	own     *Error                 // an error to which only the client has a pointer
	header  Metadata               // see Call.Header
	each    pipe.Checks            // see Call.EachMessage
}

func (c *Call) rarely() *rareCall {
	if c.rare == nil {
		c.rare = new(rareCall)
	}
	return c.rare
}

// Note adds a line to the record of the call. By names the middleware, and what says what the
// middleware did. Such lines help people to find out why a call failed or was slow. Note unusual
// actions only, for example that the call had to wait or was sent again.
func (c *Call) Note(by, what string) { c.rarely().Note(clock(), by, what) }

// The context of a handler has the handler's call, and passes state of it down to the calls that
// the handler makes: see package heritage. Package budget says how the attempt budget goes down the
// call tree and comes back.

// A handlerState is the state that a handler's calls inherit from the handler's own call.
type handlerState struct {
	heritage.Heritage
	server *Server // with live data; nil without
}

type heritageKey struct{}

type callKey struct{}

// CallFrom returns the call that a handler is executing, from the handler's context. The call has
// the metadata, the attachment, the trailer to be sent, and the peer. For any other context
// CallFrom returns nil. If a goroutine outlives its handler, it must call CallFrom before the
// handler returns. Afterwards the result may have only the method's name.
func CallFrom(ctx context.Context) *Call {
	call, _ := ctx.Value(callKey{}).(*Call)
	return call
}

// A callRef is the part of a handler's context that refers to the call. It is not reused, because
// handlers keep contexts, and the call may already serve another request.
type callRef struct {
	as *boundMethod
	in *serverCall
}

// value returns the values of a handler's context that come from its call. Known reports whether it
// knows key.
func (r *callRef) value(key any) (value any, known bool) {
	switch key.(type) {
	case callKey:
		if c := r.hold(); c != nil {
			return &c.call, true
		}
		return &Call{Method: r.as.Name}, true
	case samplerKey:
		return r.as.server.samples, true
	case heritageKey:
		if c := r.hold(); c != nil {
			if c.method != nil && !c.method.Nests.Load() {
				c.method.Nests.Store(true)
			}
			return c.heritage(), true
		}
		return nil, true
	}
	return nil, false
}

// hold returns the call that the reference belongs to, and prevents its reuse for another request.
// It returns nil if the call is already reused.
func (r *callRef) hold() *serverCall {
	if r.in.owner.Hold(r, &r.in.held) {
		return r.in
	}
	return nil
}

// background is the context of most calls that are made outside of handlers.
var background = context.Background()

// inherit sets the fields that a call inherits from the handler that makes it, if ctx is a
// handler's context. If ctx is context.Background, inherit makes only one comparison.
func (c *Call) inherit(ctx context.Context) {
	if ctx == background {
		return
	}
	h, _ := ctx.Value(heritageKey{}).(*handlerState)
	if h == nil {
		return
	}
	if client := c.Client(); h.server != nil && client != nil && client.server.Load() == nil {
		h.server.adopt(client)
	}
	if b := h.Tokens(); b != nil {
		c.budget = b
	}
	c.inherited.Inherit(&h.Heritage, c.heritable())
}

// heritable returns the fields that a call may inherit.
func (c *Call) heritable() heritage.Fields {
	return heritage.Fields{Criticality: &c.Criticality, Tenant: &c.Tenant, Trace: &c.Trace, Explain: &c.Explain}
}

// heritage returns the state for calls made with the handler's context, or nil if there is none. It
// may be called concurrently.
func (c *serverCall) heritage() *handlerState {
	if h := c.heirs.Load(); h != nil {
		return h
	}
	call := &c.call // with the changes that middleware has made
	v := heritage.Values{Budget: call.Budget, Criticality: call.Criticality, Tenant: call.Tenant, Trace: call.Trace, Explain: call.Explain}
	if v == (heritage.Values{}) {
		if c.server.live != nil {
			return &c.server.measuring
		}
		return nil
	}
	h := &handlerState{}
	if h.Set(v); c.server.live != nil {
		h.server = c.server
	}
	if !c.heirs.CompareAndSwap(nil, h) {
		return c.heirs.Load()
	}
	return h
}

// used returns how many of the request's tokens were used or lost by the calls made for it.
func (c *serverCall) used() uint64 {
	if h := c.heirs.Load(); h != nil {
		return h.Used()
	}
	return 0
}

// lend lends tokens to an attempt if its method is known to make calls of its own. The tokens are
// lost if no reply comes. The client keeps one token for a retry. It keeps no token for a call that
// sends a stream and has a budget of its own, because such a call cannot be retried once the server
// has accepted it.
func (o *outgoing) lend(call *Call) {
	b, x := call.tokens(), o.useExtra()
	x.lent = 0
	if o.binding.Of.Nests.Load() {
		kept := int32(1)
		if k := o.binding.Kind; (k == wire.Upload || k == wire.Duplex) && b == &x.budget {
			kept = 0
		}
		x.lent = b.Lend(kept)
	}
	o.req.Budget = uint64(1 + x.lent) //nolint:gosec // not negative
}

// repay takes back the tokens that the attempt did not use.
func (o *outgoing) repay(call *Call, used uint64) {
	x := o.useExtra()
	call.budget.Repay(x.lent, used)
	x.lent = 0
}

// lender returns the Completer for a stream. If the stream borrowed tokens from a handler's budget,
// it is a lender, which returns the tokens when the stream ends. Tokens from the call's own budget
// need not be returned, because that budget ends with the call.
func (o *outgoing) lender(ctx context.Context, c *Call, st *mux.Stream) mux.Completer {
	lent := o.readExtra().lent
	if lent == 0 {
		return st
	}
	if h, _ := ctx.Value(heritageKey{}).(*handlerState); h == nil || c.budget != h.Tokens() {
		return st
	}
	return c.budget.Lender(st, lent)
}
