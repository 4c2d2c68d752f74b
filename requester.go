// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/details"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/iface"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/methods"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A requester turns calls into requests and decodes their replies, on connections that it is given.
// A client has one for all its endpoints, and a server has one for all its peers. The handle of a
// binding is the same on all these connections.
type requester struct {
	codec         Codec      // for calls without a codec of their own
	compressor    Compressor // for calls without a compressor of their own; nil means none
	compressAbove int
	noWait        bool
	checksum      bool
	limits        Limits // with defaults
	guard         *guard.Guard
	memory        *mux.Memory
	unpacking     unpack.Gate
	side          string // "client" or "server", for messages
	slowAfter     time.Duration
	samples       *sampler // records of its calls

	methods    methods.Table[remoteMethod]  // changes are guarded by methodsMu
	last       atomic.Pointer[remoteMethod] // of the last call; reading it is faster than the table
	methodsMu  sync.Mutex
	bindings   []*binding      // by handle; guarded by methodsMu
	free       []int           // handles whose methods were removed; guarded by methodsMu
	idempotent map[string]bool // methods that the options declare idempotent
	outgoing   sync.Pool       // of *outgoing

	client     *Client // nil on a server
	watchers   watchers
	counts     bool                    // see ClientOptions.CountCalls
	counted    map[string]*stats.Calls // by method, at most maxCounted; guarded by methodsMu
	otherCalls *stats.Calls            // of methods without counters of their own; nil if counts is false
	peers      peerPath
	async      chan struct{} // tokens: one for each goroutine of an asynchronous call
	states     states

	repeated metadata.Cache

	watches bool // an observer of calls to endpoints or to peers has Attempt
}

// The sides.
const (
	clientSide = "client"
	serverSide = "server"
)

// setUp initializes a requester after its settings have been set.
func (q *requester) setUp(idempotent []string) {
	q.idempotent = make(map[string]bool)
	for _, name := range idempotent {
		q.idempotent[name] = true
	}
	if q.counts {
		q.counted, q.otherCalls = make(map[string]*stats.Calls), new(stats.Calls)
	}
	q.async = make(chan struct{}, q.limits.MaxOpen)
	q.outgoing.New = func() any { return &outgoing{from: q, req: mux.Out{Bare: true}} }
}

// A remoteMethod holds what a requester knows about a method name.
type remoteMethod struct {
	name       string
	idempotent atomic.Bool
	nests      atomic.Bool                 // its handler makes calls of its own
	usual      atomic.Pointer[binding]     // with the requester's codec and compressor; nil before the first such call
	all        []*binding                  // guarded by methodsMu
	calls      atomic.Pointer[stats.Calls] // nil until countsOf has chosen them
}

// A binding is a method with a codec and a compressor. Each connection has a number for it.
type binding struct {
	mux.Method
	of    *remoteMethod
	codec Codec
	pack  unpack.Packer
	reply atomic.Uintptr // the type of the last reply: see iface.TypeOf
}

// take returns an outgoing for one call.
func (q *requester) take() *outgoing { return q.outgoing.Get().(*outgoing) } //nolint:forcetypeassert // the pool holds nothing else

// give returns o to the pool.
func (q *requester) give(o *outgoing) {
	if o.reset() {
		q.outgoing.Put(o)
	}
}

// binding returns the binding of a call, or nil if a name is too long to be sent.
func (q *requester) binding(call *Call) *binding {
	positional := several(call.Args)
	m := q.last.Load()
	if m == nil || m.name != call.Method {
		if m = q.methods.Get(call.Method); m != nil {
			q.last.Store(m)
		}
	}
	if m != nil && call.Codec == nil && call.Compressor == nil {
		if b := m.usual.Load(); b != nil && b.Positional == positional && b.Kind == call.kind() {
			return b
		}
	}
	return q.bindingSlow(call, positional)
}

// bindingSlow finds or makes the binding of a call that differs from the usual calls of its method.
// It compares codecs and compressors by name, as the protocol does.
func (q *requester) bindingSlow(call *Call, positional bool) *binding {
	codec, compressor := call.Codec, call.Compressor
	if codec == nil {
		codec = q.codec
	}
	if compressor == nil {
		compressor = q.compressor
	}
	codecName, compressorName := codec.Name(), nameOf(compressor)
	if max(len(call.Method), len(codecName), len(compressorName)) > wire.MaxName {
		return nil
	}
	q.methodsMu.Lock()
	defer q.methodsMu.Unlock()
	m := q.methodLocked(call.Method)
	for _, b := range m.all {
		if b.Codec == codecName && b.Compressor == compressorName && b.Positional == positional && b.Kind == call.kind() {
			return b
		}
	}
	b := &binding{of: m, codec: codec, pack: q.packer(compressor)}
	b.Method = mux.Method{
		Handle: len(q.bindings), Name: m.name, Codec: codecName, Compressor: compressorName,
		Kind: call.kind(), Positional: positional, Idempotent: m.idempotent.Load(),
	}
	if n := len(q.free); n > 0 {
		b.Handle, q.free = q.free[n-1], q.free[:n-1]
		b.Generation = q.bindings[b.Handle].Generation + 1
		q.bindings[b.Handle] = b
	} else {
		q.bindings = append(q.bindings, b)
	}
	m.all = append(m.all, b)
	if call.Codec == nil && call.Compressor == nil {
		m.usual.Store(b)
	}
	return b
}

// methodLocked finds or makes the remoteMethod of a name. If there are too many, it removes another
// one, whose calls go on. The caller holds q.methodsMu.
func (q *requester) methodLocked(name string) *remoteMethod {
	if m := q.methods.Get(name); m != nil {
		return m
	}
	m := &remoteMethod{name: strings.Clone(name)} // the name may be a part of much memory
	m.idempotent.Store(q.idempotent[name])
	if removed := q.methods.Add(m.name, m); removed != nil {
		q.last.CompareAndSwap(removed, nil)
		for _, b := range removed.all {
			q.free = append(q.free, b.Handle)
		}
	}
	return m
}

// kind returns the kind of method that a call is for.
func (c *Call) kind() uint64 {
	if c.stream == nil {
		return wire.Unary
	}
	return c.stream.kind
}

func nameOf(c Compressor) string {
	if c == nil {
		return ""
	}
	return c.Name()
}

// learned stores what a server says about a method.
func (q *requester) learned(_ *mux.Conn, handle int, generation uint32, info wire.Info) {
	q.methodsMu.Lock()
	defer q.methodsMu.Unlock()
	if handle >= len(q.bindings) || q.bindings[handle].Generation != generation {
		return
	}
	m := q.bindings[handle].of
	if info.Idempotent != 0 {
		m.idempotent.Store(true)
	} else if info.Known != 0 { // another method may now be registered under the name
		m.idempotent.Store(q.idempotent[m.name])
	}
	if info.Nests != 0 {
		m.nests.Store(true)
	}
}

// encode encodes the request of call, once for all attempts.
func (q *requester) encode(o *outgoing, call *Call) error {
	if o.binding != nil {
		return nil
	}
	b := q.binding(call)
	if b == nil {
		return tooLongName(call)
	}
	if _, whatever := call.Reply.(*Encoded); call.Reply != nil && !whatever && several(call.Reply) != b.Positional {
		return refusal("YDL2005", "%s: arguments and reply are both yodel.Values, or neither is", call.Method)
	}
	if err := unsendable(call, b, b.codec); err != nil {
		return err
	}
	body, as := encoded(b.codec, call.Args)
	if !as || call.OneWay { // a one-way call may be sent again after Do has returned
		body = o.body[:0]
		err := error(nil)
		if k := b.Kind; k == wire.Unary || k == wire.Feed { // a call of another kind sends only messages
			body, err = appendBody(body, b.codec, call.Args)
		}
		if err != nil {
			e := refusal("YDL2103", "%s: %v (codec %s)", call.Method, err, b.codec.Name())
			e.Cause = err
			return e
		}
		o.body = body
	}
	req := &o.req
	req.Method, req.Body, req.Attachment, req.Checksum = &b.Method, body, call.Attachment, q.checksum
	packed, ok, err := b.pack.Pack(o.packed, body)
	o.packed = packed
	if err != nil {
		return refusal("YDL2103", "%s: %v", call.Method, err)
	} else if ok {
		req.Body, req.Compressed = o.packed, true
	}
	if n := len(req.Body) + len(req.Attachment); n > q.limits.MaxMessage {
		return refusal("YDL2201", "%s: the request has %d bytes, this %s's limit is %d", call.Method, n, q.side, q.limits.MaxMessage)
	}
	o.binding = b
	return nil
}

func tooLongName(call *Call) *Error {
	return refusal("YDL2001", "%.40s…: the names of a method, its codec and its compressor have at most %d bytes each", call.Method, wire.MaxName)
}

// unsendable returns an error if the arguments or the reply of a call are unusable. The server
// would receive a nil pointer as zero values. If codec cannot decode into Reply, the caller would
// learn that only after the method has been executed. Codec is nil if the link may have its own.
func unsendable(call *Call, b *binding, codec Codec) *Error {
	if iface.IsNil(call.Args) && call.Args != nil {
		if v := reflect.ValueOf(call.Args); v.Kind() == reflect.Pointer && !reflectcall.HasNoContent(v.Type().Elem()) && (b.Kind == wire.Unary || b.Kind == wire.Feed) {
			return refusal("YDL2103", "%s: the request is a nil %T", call.Method, call.Args)
		}
	}
	as := iface.TypeOf(call.Reply)
	if as == b.reply.Load() && !iface.IsNil(call.Reply) {
		return nil
	}
	replies, several := call.Reply.(Values)
	if !several && call.Reply != nil {
		replies = Values{call.Reply}
	}
	for i, reply := range replies {
		if !decodable(reply) {
			what := "the reply"
			if several {
				what = fmt.Sprintf("result %d", i+1)
			}
			return refusal("YDL2102", "%s: %s cannot be decoded into %s: give a pointer to it", call.Method, what, kindOfReply(reply))
		}
		_, whatever := reply.(*Encoded)
		if err := carries.Check(codec, reflect.TypeOf(reply)); err != nil && !whatever {
			return refusal("YDL2102", "%s: the reply cannot be decoded: %v (codec %s)", call.Method, err, codec.Name())
		}
	}
	if s := call.stream; s != nil {
		if err := carries.Check(b.codec, s.in, s.out); err != nil {
			return refusal("YDL2103", "%s: %v (codec %s)", call.Method, err, b.codec.Name())
		}
	} else if !several && codec != nil {
		b.reply.Store(as)
	}
	return nil
}

// decodable reports whether v is a pointer that is not nil.
func decodable(v any) bool {
	p := reflect.ValueOf(v)
	return p.Kind() == reflect.Pointer && !p.IsNil()
}

// kindOfReply describes a value into which a reply cannot be decoded.
func kindOfReply(v any) string {
	if reflect.ValueOf(v).Kind() == reflect.Pointer {
		return fmt.Sprintf("a nil %T", v)
	}
	return fmt.Sprintf("%T", v)
}

// encodeFields encodes the metadata and the fields. It runs for each attempt, because endpoint
// middleware may change them.
func (q *requester) encodeFields(o *outgoing, call *Call) error {
	req := &o.req
	req.Metadata = nil
	if call.Metadata != nil {
		x := o.useExtra()
		req.Metadata, x.metadata = q.repeated.Encode(x.metadata[:0], call.Metadata)
	}
	if !req.Bare || call.Attempt != 0 || call.IdempotencyKey != "" || call.Key != "" || call.Criticality != 0 || call.Tenant != "" || call.Trace != "" || call.Explain {
		req.Bare = false
		encodeRare(&req.Fields, call)
	}
	n := len(req.Metadata) + len(call.IdempotencyKey) + len(call.Key) + len(call.Tenant) + len(call.Trace)
	if err := q.limits.metadata().Check(len(call.Metadata), n); err != nil {
		return refusal("YDL2203", "%s: the metadata %v on this %s", call.Method, err, q.side)
	}
	return nil
}

// encodeRare sets the fields that most calls do not have.
func encodeRare(f *wire.Fields, call *Call) {
	f.Attempt = uint64(call.Attempt)
	f.Criticality = wireCriticality(call.Criticality)
	f.Explain, f.IdempotencyKey, f.KeyBegan, f.Key, f.Tenant, f.Trace = 0, nil, 0, nil, nil, nil
	if call.Explain {
		f.Explain = 1
	}
	if call.Tenant != "" {
		f.Tenant = []byte(call.Tenant)
	}
	if call.Trace != "" {
		f.Trace = []byte(call.Trace)
	}
	if call.IdempotencyKey != "" {
		f.IdempotencyKey = []byte(call.IdempotencyKey)
	}
	if call.Key != "" {
		f.Key = []byte(call.Key)
	}
}

// decode decodes the answer into call. Afterwards call does not refer to the answer's memory.
func (q *requester) decode(ctx context.Context, o *outgoing, call *Call, a *mux.Answer) error {
	o.arrived, o.received = a.At, uint32(min(len(a.Fields)+len(a.Body)+len(a.Attachment), math.MaxInt32))
	if len(a.Fields) > 0 || a.Code != 0 || a.Attachment != nil || o.readExtra().lent > 0 {
		if err := q.decodeFields(call, a); err != nil {
			return err
		}
	}
	if call.Reply == nil {
		return nil
	}
	if _, as := call.Reply.(*Encoded); as || a.Flags&wire.Compressed != 0 || len(a.Body) >= largeBody || o.binding.Positional {
		return q.decodeUnusual(ctx, o, call, a)
	}
	if err := o.binding.codec.Decode(a.Body, call.Reply); err != nil { // see decodeBody
		return unfit(call, err)
	}
	return nil
}

// decodeUnusual decodes a body that is not an ordinary small message.
func (q *requester) decodeUnusual(ctx context.Context, o *outgoing, call *Call, a *mux.Answer) error {
	body := a.Body
	if a.Flags&wire.Compressed != 0 {
		var err error
		if body, err = q.decompress(ctx, o, call, body); err != nil {
			return err
		}
		defer q.memory.Give(len(body))
	} else if to := recipient(body, o.binding.codec, call.Reply); to != nil && a.Keep() {
		*to = slices.Clip(body)
		return nil
	}
	if e, ok := call.Reply.(*Encoded); ok {
		e.Body, e.Several = append(e.Body[:0], body...), o.binding.Positional
		return nil
	}
	if err := decodeBody(body, o.binding.codec, call.Reply); err != nil {
		return unfit(call, err)
	}
	return nil
}

// unfit returns the error of a reply that cannot be decoded.
func unfit(call *Call, err error) error {
	e := failure("YDL2102", "%s: the reply from %s does not fit %T: %v (codec %s)", call.Method, addrOf(call), call.Reply, err, call.out.binding.codec.Name())
	e.Cause = err
	return e
}

// decodeFields decodes the attachment and the fields of an answer into call. If the answer is an
// error, decodeFields returns that error.
func (q *requester) decodeFields(call *Call, a *mux.Answer) error {
	if a.Attachment != nil {
		call.ReplyAttachment = append([]byte{}, a.Attachment...)
	}
	var f wire.Fields
	if err := wire.ParseFields(a.Fields, &f); err != nil {
		return &mux.BrokenError{Cause: err}
	}
	md, err := q.limits.metadata().Parse(f.Metadata)
	what := metadata.Excess(err)
	if err != nil && what == "" {
		return &mux.BrokenError{Cause: err}
	}
	call.Trailer = md
	if len(f.Header) > 0 {
		if md, err = q.limits.metadata().Parse(f.Header); err == nil {
			call.SetHeader(md)
		} else if what = cmp.Or(what, metadata.Excess(err)); what == "" {
			return &mux.BrokenError{Cause: err}
		}
	}
	if o := call.out; o.readExtra().lent > 0 {
		o.repay(call, f.Budget)
	}
	if f.ServerTime > 0 {
		call.out.serverSaid(&f)
	}
	if f.Load > 0 && call.Endpoint != nil {
		call.Endpoint.reported(f.Load)
	}
	switch {
	case a.Code != 0:
		return remoteError(call, a, &f)
	case what != "":
		return failure("YDL2203", "%s: the metadata of the reply from %s %s on this %s; the method was executed", call.Method, addrOf(call), what, q.side)
	}
	return nil
}

// serverSaid stores the times that the server reports.
func (o *outgoing) serverSaid(f *wire.Fields) {
	const most = math.MaxInt64 / uint64(time.Microsecond)
	x := o.useExtra()
	x.serverTime = time.Duration(min(f.ServerTime, most)) * time.Microsecond
	x.serverWait = time.Duration(min(f.ServerWait, f.ServerTime, most)) * time.Microsecond
}

// addrOf returns the address to which a call was sent.
func addrOf(call *Call) string {
	switch {
	case call.Endpoint != nil:
		return call.Endpoint.Addr()
	case call.out != nil && call.out.peer != nil:
		return call.out.peer.Addr.String()
	}
	return "the server"
}

// maxRetryAfter is the largest Error.RetryAfter that is accepted from a server, in microseconds: a
// day.
const maxRetryAfter = 24 * 3600 * 1e6

// remoteError returns the error in an answer. If the error has an ID, its message gets the method
// and the address. remoteError limits and cleans the server's values, so that later code need not
// do it.
func remoteError(call *Call, a *mux.Answer, f *wire.Fields) *Error {
	e := &Error{
		Code: Code(a.Code), Message: text.Clip(string(f.Message), maxErrorText), ID: text.ID(string(f.ErrorID)),
		NotProcessed: a.Flags&wire.NotProcessed != 0,
		RetryAfter:   time.Duration(min(f.RetryAfter, maxRetryAfter)) * time.Microsecond,
		relayed:      true,
	}
	details.Parse(f.Details, e.addDetail)
	if e.ID != "" {
		e.Message = fmt.Sprintf("%s: %s: %s", call.Method, addrOf(call), strings.TrimPrefix(e.Message, call.Method+": "))
	}
	return e
}

func (q *requester) decompress(ctx context.Context, o *outgoing, call *Call, body []byte) ([]byte, error) {
	x := o.useExtra()
	body, err := q.unpackReply(ctx, call, &o.binding.pack, x.unpacked[:0], body)
	if err == nil {
		x.unpacked = body
	}
	return body, err
}

func (q *requester) packer(c Compressor) unpack.Packer {
	return unpack.Packer{Compressor: c, Above: q.compressAbove, Limits: q.limits.decompressed(), Gate: &q.unpacking}
}

// unpackReply decompresses a reply into memory. The caller must give the bytes of the result back
// to q.memory.
func (q *requester) unpackReply(ctx context.Context, call *Call, pack *unpack.Packer, memory, body []byte) ([]byte, error) {
	if pack.Compressor == nil {
		return nil, &mux.BrokenError{Cause: errors.New("it is compressed, which was not agreed")}
	}
	unpacked, err := pack.Unpack(ctx, q.memory, memory, body)
	switch {
	case err != nil && err == ctx.Err(): //nolint:errorlint // it is returned bare
		return nil, context.Cause(ctx)
	case errors.Is(err, mux.ErrMemory):
		return nil, failure("YDL3007", "%s: this %s has no memory left to decompress the reply from %s", call.Method, q.side, addrOf(call))
	case errors.Is(err, ErrTooLarge):
		return nil, failure("YDL2204", "%s: the reply from %s %s", call.Method, addrOf(call), pack.TooLarge(body))
	case err != nil:
		return nil, &mux.BrokenError{Cause: fmt.Errorf("decompress with %s: %w", pack.Name(), err)}
	}
	return unpacked, nil
}
