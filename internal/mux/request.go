// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/keyqueue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Target is a method on the side that serves it, together with the codec of the call. The peer
// names it by a method number. Several goroutines may call the methods of a Target at the same
// time.
type Target interface {
	// Inline reports whether the method is known to be short. A short method runs on the reader
	// goroutine. Timed says whether this call is measured. Not every call is, because reading the
	// clock takes longer than the shortest methods. The reader goroutine calls Inline once for each
	// request.
	Inline() (inline, timed bool)
	// Expects returns the size of the method's recent replies, in bytes, if they are large. It
	// returns 0 if they are small.
	Expects() int
	// New returns a Request, embedded in the state that the owner keeps for a call. Used is nil or
	// a finished Request that New may reuse: New of a target of this side returned it earlier, and
	// it has run inline to its end.
	New(used *Request) *Request
	// Serve executes the call and stores the reply in the request. Serve must not panic. It may end
	// its goroutine.
	Serve(r *Request)
	// Reply stores the reply in a request on which Serve has called Later. Reply must not panic.
	Reply(r *Request)
	// Done is called when the reply has been queued. Took is how long Serve ran, or Untimed.
	// HandedOver says that Serve blocked the reader goroutine for so long that another reader took
	// over. Done must not panic. It may end its goroutine.
	Done(r *Request, took time.Duration, handedOver bool)
}

// Untimed is the duration of a call that was not measured.
const Untimed time.Duration = -1

// A Request is a call that the peer opened. A Request that has run inline to its end may be reused,
// because only its reader has a reference to it. Its Context is never reused, because handlers keep
// contexts.
type Request struct {
	*Context // set by New, or else by the reader

	// Owner is the value that the Request is embedded in.
	Owner any

	// The request as it arrived. Body and Attachment are valid until Done.
	OneWay     bool
	Compressed bool
	Metadata   []byte // pairs, see wire.EachPair; valid as long as Body
	Budget     uint64 // the budget of attempts; 0 means unlimited
	// Fields is nil when the timeout, the metadata and the budget are the only fields. Its slices
	// are valid until Done.
	Fields     *wire.Fields
	Body       []byte
	Attachment []byte
	Broken     error // why the message could not be read, or nil; Serve turns it into the reply

	// Taken, Left, Arrived and Began are readings of the clock, or 0. Taken is from when this side
	// began to work on the request. It is 0 if the reader goroutine runs the request and has not
	// read the clock. Left is from when Done returned, if Done has read the clock. The reader uses
	// Left as the beginning of the next call.
	Taken, Left time.Duration
	// Arrived is from when the first frame of the request was read. It is 0 if the reader goroutine
	// runs the request and has not read the clock. Began is from when the method itself began, if
	// Serve has set it.
	Arrived, Began time.Duration

	// Serve fills in Reply. Scratch is memory for encoding the reply. If Serve grows it, Serve
	// stores the grown slice in Scratch.
	Reply   Outcome
	Scratch []byte

	fieldMemory *wire.Fields // nil before the first request with unusual fields

	target   Target
	number   uint16 // of the method
	methodID uint32 // of the Method frame that gave it
	bytes    int
	memory   int  // bytes that are counted for the request until it leaves the table
	expected int  // the part of memory for its reply
	admitted bool // there was room for the reply of the request, see replies.go
	checksum bool
	own      bool // held belongs to this message alone
	nested   bool // the request serves a call of this side, see nested.go
	unwanted bool // the peer has canceled it; guarded by Conn.mu
	// the peer used the id twice, and the reader noticed too late; guarded by Conn.mu
	stray  bool
	late   atomic.Int32 // see Later
	orphan bool         // one-way, and its connection has ended; guarded by Conn.mu
	held   *[]byte      // the memory of the body, unless that memory is the read buffer
	// set while the request arrives in pieces; changed by the reader with Conn.mu held
	collected *collect.Message
	stream    *Stream                   // nil for a unary method
	ordered   *keyqueue.Entry[*Request] // nil when the request is not ordered; guarded by Conn.mu
}

// An Outcome is the reply to a request.
type Outcome struct {
	Code         uint16
	NotProcessed bool
	Compressed   bool
	Fields       *wire.Fields
	Body         []byte
	Attachment   []byte
}

// Inform sends the peer this side's information about the method that the peer calls. Config.Bind
// returns no information while the peer must not have it yet. The owner calls Inform once the peer
// may have it.
func (r *Request) Inform(info wire.Info) {
	c := r.conn
	c.mu.Lock()
	if c.lifetime.err == nil {
		c.writing.appendLocked(func(dst []byte) []byte { return wire.AppendMethodInfo(dst, r.number, r.methodID, &info) })
	}
	c.writing.flushAndUnlock(true)
}

// Keep passes ownership of Body and Attachment to the caller if their memory belongs to this
// message alone. It reports whether the caller is now the owner.
func (r *Request) Keep() bool {
	if r.own {
		r.held = nil
	}
	return r.own
}

// Stream returns the stream of a method that is not unary, or nil.
func (r *Request) Stream() *Stream { return r.stream }

// run serves a request that is in the table. It runs on a goroutine of the pool.
func (r *Request) run() {
	c := r.conn
	if r.park() {
		c.cfg.Pool.running.End()
		return
	}
	scratch := c.cfg.Pool.buffers.Get()
	r.Scratch = (*scratch)[:0]
	r.Taken = c.rt.clock()
	normal := false
	defer func() {
		if r.late.Load() != notLate {
			r.Scratch = nil // Finish may run at the same time
		}
		if !r.served() {
			c.cfg.Pool.buffers.Put(scratch)
			return
		}
		if !normal && r.late.Load() == notLate {
			r.Reply = goexitOutcome()
		}
		now := c.rt.clock()
		took := now - r.Taken
		r.sayTimes(now)
		c.callsIn.finish(r)
		defer func() { // also if Done ends the goroutine
			*scratch = r.Scratch
			r.Scratch = nil
			c.cfg.Pool.buffers.Put(scratch)
			r.releaseBody(c.cfg.Pool)
			c.cfg.Pool.running.End()
		}()
		r.target.Done(r, took, false)
	}()
	r.target.Serve(r)
	normal = true
}

// Size returns how many bytes the body and the attachment have, in the form in which they were
// sent.
func (r *Request) Size() int { return r.bytes }

// explained reports whether the peer asked where the time of the call went.
func (r *Request) explained() bool { return r.Fields != nil && r.Fields.Explain != 0 }

// sayTime is the duration from which a reply carries the times of the call, even if the peer did
// not ask for them. Shorter calls do not carry them, because the fields cost an allocation and a
// few bytes.
const sayTime = 10 * time.Millisecond

// sayTimesIfAsked adds the times of the call to the reply if the peer asked for them. It is for a
// request that was not measured.
func (r *Request) sayTimesIfAsked() {
	if r.explained() {
		r.sayTimes(r.conn.rt.clock())
	}
}

// sayTimes adds the times of the call up to now to the reply, if the peer may want them.
func (r *Request) sayTimes(now time.Duration) {
	if r.Arrived == 0 {
		r.Arrived = r.Taken
	}
	took := now - r.Arrived
	if failed := r.Reply.Code != 0 && r.Reply.Fields != nil; r.alone() || took < sayTime && !failed && !r.explained() {
		return
	}
	began := r.Began
	if began == 0 {
		began = r.Taken
	}
	if r.Reply.Fields == nil {
		r.Reply.Fields = new(wire.Fields)
	}
	f := r.Reply.Fields
	f.ServerTime = max(microseconds(took), 1)
	f.ServerWait = min(microseconds(began-r.Arrived), f.ServerTime)
}

func microseconds(d time.Duration) uint64 { return uint64(max(d, 0) / time.Microsecond) }

func (r *Request) releaseBody(p *Pool) {
	if r.held != nil {
		if r.own {
			r.conn.rt.spares.Give(*r.held)
		} else {
			p.buffers.Put(r.held)
		}
		r.held, r.Body, r.Attachment = nil, nil, nil
	}
}

// replyMessage returns the header of the reply of r, and stores its message in m, which is zero. A
// message is not returned, because copying one takes longer than all else here.
func (r *Request) replyMessage(m *message) wire.Header {
	m.fields, m.body, m.attachment = r.Reply.Fields, r.Reply.Body, r.Reply.Attachment
	if r.Reply.NotProcessed {
		m.flags |= wire.NotProcessed
	}
	if r.Reply.Compressed {
		m.flags |= wire.Compressed
	}
	if r.checksum {
		m.flags |= wire.HasChecksum
	}
	return wire.Header{Type: wire.Reply, Arg: r.Reply.Code, ID: r.id}
}

// unserved is the target of every method number on a side without services.
type unserved struct{}

func (unserved) Inline() (bool, bool)  { return false, false }
func (unserved) Expects() int          { return 0 }
func (unserved) New(*Request) *Request { return new(Request) }
func (unserved) Serve(r *Request) {
	r.Reply = refusedWith(catalogue.NothingServed, "this side of the connection serves nothing")
}
func (unserved) Reply(*Request)                     {}
func (unserved) Done(*Request, time.Duration, bool) {}

// shuttingDown is the text of the refusal of requests that arrive after the drain notice.
const shuttingDown = "the server is shutting down"

// refusedWith returns the outcome of a request that is not executed.
func refusedWith(errorID, text string) Outcome {
	o := failedWith(errorID, text)
	o.NotProcessed = true
	return o
}

func failedWith(errorID, text string) Outcome {
	return Outcome{Code: catalogue.Of(errorID).Code, Fields: &wire.Fields{ErrorID: []byte(errorID), Message: []byte(text)}}
}

func goexitOutcome() Outcome {
	return failedWith(catalogue.HandlerGoexited, "the handler ended its goroutine (runtime.Goexit) instead of returning")
}
