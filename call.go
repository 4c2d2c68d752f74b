// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// A Call is one request and its reply, on its way down a chain of handlers and back.
//
// On the client the caller fills in what it needs and Client.Do sends it. On the server the
// framework fills it in from the request, and the handler finds it with CallFrom.
//
// A Call belongs to one goroutine at a time. Middleware and observers must not keep a Call after
// they have returned: those of the server, and those made by Client.Call and Method.Call, are used
// again.
type Call struct {
	// Method is the name of the method on the wire, for example "Arith.Mul".
	Method string

	// Args is the request: a pointer to a message, or Values for a method with several arguments.
	// On the server it is nil until Decode, which the method itself calls last of all.
	Args any

	// Reply is what the reply is decoded into: a pointer, or Values of pointers. On the server it
	// is what the method returned. A nil Reply on the client discards the reply's body.
	Reply any

	// Metadata travels with the request. The framework never changes a map that the user made. On
	// the server it belongs to the call: it is used again with it.
	Metadata Metadata

	// Trailer travels with the reply, also with an error: set by the server, read by the client.
	Trailer Metadata

	// Attachment is raw bytes beside the encoded request. On the server it is valid until the
	// handler returns.
	Attachment []byte

	// ReplyAttachment is raw bytes beside the encoded reply.
	ReplyAttachment []byte

	// Deadline ends the call, in addition to the deadline of its context. It travels to the server.
	// Zero is never.
	Deadline time.Time

	// Codec encodes the request and the reply. Nil is the client's.
	Codec Codec

	// Compressor compresses the request and the reply. Nil is the client's.
	Compressor Compressor

	// Key is what consistent hashing and keyed order go by.
	Key string

	// Ordered keeps calls in order: those of one Client with the same Key and Ordered begin and
	// return in the order in which they were made, one after the other, while others run in
	// parallel. No key is a key too. None waits for the reply of the one before it to be sent.
	// Callbacks are called one after the other; a call that its caller gives up returns at once. On
	// the server it says that the call came in such an order.
	//
	// Nothing overtakes: a call that is sent again keeps its place, and one that may have been
	// executed is not sent again when a later one may have been, too. When the connection is lost
	// and nobody knows whether a call was executed, the later ones that have been made by then and
	// were not sent fail with YDL1009, certainly not executed; calls made afterwards begin afresh.
	// Ordered calls must not be hedged, and a handler must not make a call with the key that it
	// serves to its own server. Streams, and calls to a Peer, have no order. Default false.
	Ordered bool

	// IdempotencyKey names the intent behind the call: two calls with one key are one intent. A
	// server that has ServerOptions.Keys executes the method once for each key that it remembers,
	// and the client sends a call that may have been executed again where its key is remembered,
	// and only there. A server without executes every call that comes. A stream is not sent again
	// because it has a key.
	IdempotencyKey string

	// Idempotent says that executing the call twice does no harm. Only such a call is sent again
	// when it may have been executed, or one whose IdempotencyKey is remembered. A method can be
	// declared idempotent on the server too, and for a whole client in ClientOptions.Idempotent.
	Idempotent bool

	// NoWait makes the call fail at once when the connection's limits are reached, instead of
	// waiting. ClientOptions.NoWait does so for all calls.
	NoWait bool

	// OneWay asks for no reply: Do returns when the request is queued for sending. Whether it was
	// executed is never known. Its context ends 30 s after the client has disconnected, or half a
	// second after if the server has many such calls. While as many one-way calls run on a
	// connection as its server allows, the server reads no other calls from it: do not send many to
	// a slow method.
	OneWay bool

	// Attempt counts how often the request was sent before: 0 the first time.
	Attempt int

	// Budget is how many attempts may be made in all of the call, and of the calls that its
	// handlers make to carry it out, and so on: it travels down the call tree, in which nobody
	// retries when it is used up. See Again. A call that a handler makes with its own context
	// shares what is left of the handler's call, whatever is set here. On the server it is what the
	// request came with. Zero is no bound.
	Budget int

	// Criticality says which calls are carried out when not all can be: package criticality has the
	// classes. It travels with the request, and down the call tree. Zero is normal.
	Criticality int

	// Tenant is on whose behalf the call is made, for those who divide what there is among tenants.
	// It travels as Criticality does.
	Tenant string

	// Explain asks for the record of the call also when it succeeds and is not slow: see Report. It
	// travels with the request, so that the server says where its time went and keeps a record too,
	// and down the call tree. On the server it says that the caller asked for it.
	Explain bool

	// Endpoint is where the balancer sends this attempt. Setting it before the balancer pins the
	// call. Nil on the server.
	Endpoint *Endpoint

	out     *outgoing       // on the side that calls: what Do made of the call
	picked  *Endpoint       // what the balancer set Endpoint to
	turn    *turn           // client: its place in the order of its key; nil when it is not ordered
	pass    int8            // how strictly it avoids
	stays   bool            // picked is for all attempts
	demands uint8           // endpoints that its pick has had dialled
	in      *serverCall     // on the side that serves: what it came from
	tried   []*Endpoint     // endpoints this call avoids
	stream  *outgoingStream // client: nil for a unary method

	limited bool // the client set Deadline

	budget  *budget   // nil for none
	lent    inherited // what it has of the handler's call whose context it was made with
	group   *group    // nil unless there may be forks
	rare    *rareCall // nil for most
	hold    *keyHold  // where its key is remembered; nil for most
	resumed *keyHold  // what hold is when the call begins: see Resume

	watch watch         // how far its observers are
	began time.Duration // when it was made, or they were told, on the clock; 0 when nobody has wanted to know
	took  time.Duration // once it has ended
}

// A watch is how far the observers of a call are.
type watch uint8

const (
	unwatched watch = iota // there are none
	watching
	watched // it has ended
)

// Metadata is key and value pairs that travel beside a message. Keys are case-sensitive; values
// are any bytes.
type Metadata map[string]string

// Values is the arguments or the results of a method that has several of either: in Call.Args the
// values, in Call.Reply pointers to where they go.
//
//	var quotient, remainder int
//	err := client.Call(ctx, "Arith.DivMod", yodel.Values{17, 5}, yodel.Values{&quotient, &remainder})
type Values []any

// A Handler carries out a call.
type Handler func(ctx context.Context, call *Call) error

// A Middleware wraps a handler with behaviour: timeouts, retries, limits, logs. It runs once,
// when the chain is built; the handler it returns runs for every call, concurrently.
type Middleware func(next Handler) Handler

// An EndpointMiddleware is a middleware below the balancer: it is built once for every endpoint
// and sees each attempt. State that must outlive a change of the chain belongs in ep.State.
type EndpointMiddleware func(ep *Endpoint, next Handler) Handler

// An Observer watches calls without treating them, so that, unlike a Middleware, it costs an
// asynchronous call no goroutine. Either function may be nil. Both run concurrently, and must be
// short.
type Observer struct {
	// Start runs before the call is sent or its handler is called. The context it returns is the
	// call's from then on.
	Start func(ctx context.Context, call *Call) context.Context
	// End runs when the call has ended: on the client before the caller is told, on the server when
	// the reply has been handed to the connection.
	End func(ctx context.Context, call *Call, err error)
}

// Took is how long a call has taken by now, for its observers: since just before the first of them
// was told that it starts. From when it has ended it stays as it is, the same for all of them.
// Where nobody observes calls it is zero.
//
// It is here, and not with each observer, because a time that is kept in a context costs an
// allocation and two readings of the clock.
func (c *Call) Took() time.Duration {
	if c.watch == watching {
		return clock() - c.began
	}
	return c.took
}

// Now returns the time, for middleware that reckons with it. On the client, until the call's first
// attempt goes to an endpoint, that is when its caller made it: all who ask, and the observers,
// share one reading of the clock, which takes as long as three middlewares.
func (c *Call) Now() time.Time {
	if c.in != nil || c.out == nil || c.out.began != 0 {
		return time.Now()
	}
	return mux.TimeOf(c.made())
}

// made returns when the call was made, or about when: it is noted when somebody first asks.
func (c *Call) made() time.Duration {
	if c.began == 0 {
		c.began = clock()
	}
	return c.began
}

// clock is one reading of the monotonic clock, half of what time.Now costs.
func clock() time.Duration { return mux.Clock() }

// startAll begins the watch of a call. What it needs of the stack must not stand under the whole
// call: see decodeBody.
//
//go:noinline
func startAll(ctx context.Context, observers []Observer, call *Call) context.Context {
	if len(observers) == 0 {
		return ctx
	}
	call.watch = watching
	call.made()
	for i := range observers {
		if start := observers[i].Start; start != nil {
			ctx = start(ctx, call) //nolint:fatcontext // each observer adds to it
		}
	}
	return ctx
}

// endAll ends it, in the opposite order.
//
//go:noinline
func endAll(ctx context.Context, g *guard, observers []Observer, call *Call, err error) {
	if len(observers) == 0 {
		return
	}
	call.stopWatch()
	for _, o := range slices.Backward(observers) {
		if o.End != nil {
			o.end(ctx, g, call, err)
		}
	}
}

// end calls End. One that panics keeps no other observer from being told.
func (o *Observer) end(ctx context.Context, g *guard, call *Call, err error) {
	defer g.rescue("an Observer's End")
	o.End(ctx, call, err)
}

// stopWatch notes how long a call has taken that is watched.
func (c *Call) stopWatch() {
	if c.watch == watching {
		c.took, c.watch = c.Took(), watched
	}
}

// refuseNil panics if an element of a list of options is nil. Otherwise the first call would.
func refuseNil[T any](name string, list []T, isNil func(T) bool) {
	for i, m := range list {
		if isNil(m) {
			panic(fmt.Sprintf("yodel: %s[%d] is nil", name, i))
		}
	}
}

// chain wraps h in ms, the first of them outermost.
func chain(ms []Middleware, h Handler) Handler {
	for _, m := range slices.Backward(ms) {
		h = m(h)
	}
	return h
}
