// SPDX-License-Identifier: Apache-2.0

// Package mirror sends a share of calls to another service as well, in the background (traffic
// mirroring). It tests a new version with real requests, whose replies no caller gets.
//
// On a client, put it innermost, so that calls that are answered without being sent are not
// mirrored. On a server, put it below the middleware that decides about access. The mirrored call
// is a copy with encoded arguments, the metadata, the key and the tenant. It has no idempotency
// key. Its class is lower (criticality.Sheddable or below), and it has its own deadline. Its
// metadata has Key, so that its server can recognize it, and a mirrored call is not mirrored again.
// One-way calls are mirrored as calls with a reply. Streams are not mirrored.
//
// The copy is in the codec of the call, whatever the client's codec is. So the other service has to
// have that codec, on a server that of its callers: gob for net/rpc, for example, which servers of
// rpcx do not have. Only Options.Compare and Options.Stats tell that copies fail.
//
// The call itself takes only the time for encoding its arguments, and gets no error from the
// mirror. Copies that cannot be sent soon are dropped. At most Options.Concurrency mirrored calls
// are in flight and Options.Queue wait, with Options.MaxBytes bytes in all. The client to which
// they are sent owns the goroutines, which end when it is closed.
//
// With Options.Compare the mirrored call is made after the original call has ended, and a function
// receives both outcomes.
//
// The idea is Finagle's dark traffic filter. Envoy calls it request mirroring.
package mirror

import (
	"bytes"
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/middleware/internal/aside"
)

// Key is a metadata key of mirrored calls. The value is "1".
const Key = "yodel-mirror"

// Options says what is mirrored. The zero value mirrors everything.
type Options struct {
	// Percent is the percentage of calls to mirror, from 0.01. Default 100.
	Percent float64
	// Methods are the methods whose calls are mirrored. Default all.
	Methods []string
	// Concurrency bounds the mirrored calls in flight. Default 8.
	Concurrency int
	// Queue bounds the mirrored calls that wait, up to 65,536. Default 128.
	Queue int
	// MaxBytes bounds the bytes of their arguments, and with Compare of the replies. Default 16
	// MiB.
	MaxBytes int
	// Timeout is the time limit of mirrored calls. Default 5 s.
	Timeout time.Duration
	// Compare receives the outcomes of a call and of its mirror. It is called concurrently. Default
	// none.
	Compare func(method string, original, mirrored *Outcome)
	// Stats counts mirrored calls. Default none.
	Stats *Stats
}

// An Outcome is the outcome of a call.
type Outcome struct {
	Reply *yodel.Encoded // nil if the call failed
	Err   error
	Took  time.Duration
}

// Stats counts mirrored calls.
type Stats struct {
	Sent   atomic.Uint64 // calls that were made
	Failed atomic.Uint64 // calls of Sent that failed
	// calls that were not made: too many were in flight or waiting, or the client is closed
	Dropped atomic.Uint64
}

// Percent sends this percentage of the calls to c as well.
func Percent(percent float64, c *yodel.Client) yodel.Middleware {
	return To(c, &Options{Percent: percent})
}

// To sends calls to c as well, as o says. Nil mirrors all calls.
func To(c *yodel.Client, o *Options) yodel.Middleware {
	m := &mirror{client: c}
	if o != nil {
		m.Options = *o
	}
	m.Methods = slices.Clone(m.Methods)
	if m.Percent <= 0 || m.Percent > 100 || math.IsNaN(m.Percent) {
		m.Percent = 100
	}
	m.share = max(uint32(math.Round(m.Percent*100)), 1)
	if m.Concurrency <= 0 {
		m.Concurrency = 8
	}
	if m.Queue <= 0 {
		m.Queue = 128
	}
	m.Queue = min(m.Queue, 1<<16) // the memory of the queue is allocated at once
	if m.MaxBytes <= 0 {
		m.MaxBytes = 16 << 20
	}
	if m.Timeout <= 0 {
		m.Timeout = 5 * time.Second
	}
	if m.Stats == nil {
		m.Stats = &Stats{}
	}
	m.waiting = make(chan *copied, m.Queue)
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if !m.chosen(call) {
				return next(ctx, call)
			}
			return m.reflect(ctx, call, next)
		}
	}
}

type mirror struct {
	Options

	client  *yodel.Client
	share   uint32 // in units of 1/everything
	waiting chan *copied
	sending atomic.Int64 // the number of sending goroutines
	bytes   atomic.Int64 // of the copies that wait or are in flight
}

// everything is the number of steps of a share: one hundredth of a percent each.
const everything = 10_000

// A copied call waits to be sent.
type copied struct {
	call     yodel.Call
	size     int64
	original *Outcome // set with Compare
}

func (m *mirror) chosen(call *yodel.Call) bool {
	if m.share < everything && rand.Uint32N(everything) >= m.share {
		return false
	}
	return (len(m.Methods) == 0 || slices.Contains(m.Methods, call.Method)) && call.Metadata[Key] == "" && !call.Streams()
}

// reflect makes the call, and queues its mirror.
func (m *mirror) reflect(ctx context.Context, call *yodel.Call, next yodel.Handler) error {
	c := m.copy(call)
	if c == nil {
		return next(ctx, call)
	}
	if m.Compare == nil || call.OneWay {
		m.send(c)
		return next(ctx, call)
	}
	original := &Outcome{}
	defer func() {
		if c.original == nil { // the call panicked, or ended its goroutine
			m.bytes.Add(-c.size)
		}
	}()
	began := time.Now()
	err := m.record(ctx, call, next, original)
	original.Took = time.Since(began)
	c.original = original
	if original.Reply != nil {
		n := int64(len(original.Reply.Body))
		c.size += n
		m.bytes.Add(n)
	}
	m.send(c)
	return err
}

// copy returns a copy of the call, if there is room for one.
func (m *mirror) copy(call *yodel.Call) *copied {
	if len(m.waiting) == cap(m.waiting) || m.bytes.Load() >= int64(m.MaxBytes) {
		m.Stats.Dropped.Add(1)
		return nil
	}
	request := &yodel.Encoded{}
	if call.Request(request) != nil {
		return nil // the call will fail for the same reason
	}
	size := int64(len(request.Body) + len(call.Attachment))
	if m.bytes.Add(size) > int64(m.MaxBytes) {
		m.bytes.Add(-size)
		m.Stats.Dropped.Add(1)
		return nil
	}
	md := make(yodel.Metadata, len(call.Metadata)+1)
	maps.Copy(md, call.Metadata)
	md[Key] = "1"
	return &copied{size: size, call: yodel.Call{
		Method: call.Method, Args: request, Metadata: md, Attachment: bytes.Clone(call.Attachment), Codec: call.Encoding(), Key: call.Key,
		Criticality: min(call.Criticality, criticality.Sheddable), Tenant: call.Tenant,
	}}
}

// record makes the call, and stores its outcome.
func (m *mirror) record(ctx context.Context, call *yodel.Call, next yodel.Handler, to *Outcome) error {
	if call.Peer() != nil {
		if to.Err = next(ctx, call); to.Err == nil {
			to.Reply, to.Err = call.Encode()
		}
		return to.Err
	}
	reply := &yodel.Encoded{}
	if to.Err = into(ctx, call, next, reply); to.Err == nil {
		to.Reply = reply
		to.Err = call.Answer(reply)
	}
	return to.Err
}

// into makes the call with reply as the destination of the reply.
func into(ctx context.Context, call *yodel.Call, next yodel.Handler, reply *yodel.Encoded) error {
	users := call.Reply
	defer func() { call.Reply = users }()
	call.Reply = reply
	return next(ctx, call)
}

// send queues a copy, or drops it.
func (m *mirror) send(c *copied) {
	select {
	case m.waiting <- c:
	default:
		m.drop(c)
		return
	}
	if m.sending.Load() < int64(m.Concurrency) {
		m.begin()
	}
}

func (m *mirror) drop(c *copied) {
	m.bytes.Add(-c.size)
	m.Stats.Dropped.Add(1)
}

// begin starts another sending goroutine, unless there are enough.
func (m *mirror) begin() {
	if m.sending.Add(1) <= int64(m.Concurrency) && m.client.Background(m.work) {
		return
	}
	m.sending.Add(-1)
	if m.sending.Load() > 0 {
		return // the goroutines check the queue again before they end
	}
	for { // the client is closed, so no goroutine will send the waiting copies
		select {
		case c := <-m.waiting:
			m.drop(c)
		default:
			return
		}
	}
}

// work sends waiting copies until there are none.
func (m *mirror) work(ctx context.Context) {
	for {
		select {
		case c := <-m.waiting:
			// A panic of the mirrored call is logged.
			_ = aside.Do("a mirrored call", nil, func() { m.do(ctx, c) })
			continue
		default:
		}
		m.sending.Add(-1)
		// otherwise a copy came while no goroutine was started because of this one
		if len(m.waiting) == 0 {
			return
		}
		if m.sending.Add(1) > int64(m.Concurrency) {
			m.sending.Add(-1)
			return // other goroutines have started since
		}
	}
}

// do makes a mirrored call.
func (m *mirror) do(ctx context.Context, c *copied) {
	defer m.bytes.Add(-c.size)
	if ctx.Err() != nil {
		m.Stats.Dropped.Add(1)
		return
	}
	var mirrored Outcome
	reply := &yodel.Encoded{}
	if c.original != nil {
		c.call.Reply = reply
	}
	began := time.Now()
	c.call.Deadline = began.Add(m.Timeout)
	mirrored.Err = m.client.Do(ctx, &c.call)
	mirrored.Took = time.Since(began)
	m.Stats.Sent.Add(1)
	if mirrored.Err != nil {
		m.Stats.Failed.Add(1)
	} else {
		mirrored.Reply = reply
	}
	if c.original != nil {
		m.Compare(c.call.Method, c.original, &mirrored)
	}
}
