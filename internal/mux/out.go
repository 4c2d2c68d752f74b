// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Method is a method that callers call. Each connection gives it a number.
type Method struct {
	// Handle is the index of the method in the tables of its owner. When the owner removes a
	// method, the next one gets its Handle.
	Handle int
	// Generation is how many methods have had the Handle before.
	Generation uint32
	Name       string
	Codec      string
	Compressor string
	Kind       uint64 // as in wire
	Positional bool
	Idempotent bool
}

// Out is a request that this side sends. The caller must not change Body and Attachment until Call
// or Start has returned. Frames that are written later contain copies of them.
//
// The fields that every call sets come first, and rarely set ones last. When an Out is reused, its
// cache lines move between the processor of the caller and the processor of the reader. This order
// of fields makes fewer cache lines move.
type Out struct {
	Method     *Method
	Body       []byte
	Metadata   []byte // pairs, see wire.AppendPair
	Budget     uint64 // the budget of attempts
	Bare       bool   // no other field is set, so the connection does not check them
	Compressed bool
	Checksum   bool
	OneWay     bool // set by Notify and Follow
	NoWait     bool // fail immediately if the peer's window is full, or MaxUnsent bytes are unwritten
	// Nest makes the request name the peer's request that the context belongs to, if that request
	// is open. A draining peer accepts such a request.
	Nest  bool
	sent  bool          // the connection has set Fields
	Began time.Duration // set by Start: approximately when the call began, see monotime
	// set by Call, Start, Notify and Follow: the time spent waiting for the peer's window and for
	// space in the output
	Waited     time.Duration
	Deadline   time.Time
	Now        time.Duration // a fresh reading of the clock; 0 for none
	Attachment []byte
	Stream     *Stream     // the stream to open, for a method of a streaming kind; only with Start
	Fields     wire.Fields // the connection sets Timeout, Metadata, Budget and Parent
}

// nested reports whether out was sent beyond the window, see nested.go.
func (out *Out) nested() bool { return out.sent && out.Fields.Parent != 0 }

// Reset clears out for the next request.
func (out *Out) Reset() {
	if !out.Bare || out.sent {
		out.Fields, out.Bare, out.sent = wire.Fields{}, true, false
	}
	out.Body, out.Compressed, out.OneWay, out.Nest = nil, false, false, false
	if out.Waited != 0 {
		out.Waited = 0
	}
	if out.Attachment != nil || out.Metadata != nil || out.Now != 0 || out.Budget != 0 {
		out.Attachment, out.Metadata, out.Now, out.Budget = nil, nil, 0, 0
	}
}

// A Completer receives the outcome of an asynchronous call. The Answer is valid until Complete
// returns. If there is a reply, Complete runs on the reader goroutine. If it blocks there, another
// goroutine takes over the reading. If there is no reply, Complete runs on its own goroutine.
type Completer interface {
	Complete(a *Answer, err error)
}

// An Answer is the reply to a call.
type Answer struct {
	Code       uint16 // 0 for success
	Flags      wire.Flags
	Fields     []byte
	Body       []byte
	Attachment []byte
	// approximately when the reply was read, on the clock; 0 for a reply to a stream
	At time.Duration

	waiter *waiter
	own    bool // the memory belongs to this message alone
}

// Keep passes ownership of Body, Attachment and Fields to the caller if their memory belongs to
// this message alone. It reports whether the caller is now the owner.
func (a *Answer) Keep() bool {
	own := a.own
	if own {
		a.own = false
		if a.waiter != nil {
			a.waiter.buf = nil
		}
	}
	return own
}

// Release releases the memory of an answer that Call returned.
func (a *Answer) Release() {
	w := a.waiter
	if a.own {
		w.conn.rt.spares.Give(w.buf)
		a.own, w.buf = false, nil
	}
	w.conn.cfg.Pool.waiters.Put(w)
}

// parse fills a from the frame of a reply, or from the header and the collected message of a large
// reply.
func (a *Answer) parse(frame []byte) error {
	h := wire.ParseHeader(frame)
	payload, err := wire.Payload(frame)
	if err == nil {
		var msg []byte
		a.Fields, msg, err = wire.SplitFields(h.Flags, payload)
		if err == nil {
			a.Body, a.Attachment, err = wire.SplitBody(h.Flags, msg)
		}
	}
	if err != nil {
		return &BrokenError{Cause: err}
	}
	a.Code, a.Flags = h.Arg, h.Flags
	return nil
}

// A Follower is a Completer that also wants to know when the peer is done with a call that its
// caller has canceled.
type Follower interface {
	Completer
	// Abandoned is called before Complete, when the caller has canceled a call whose request was
	// sent. It must not block. The Completer that it returns receives the true outcome of the call:
	// a reply, or the end of the connection.
	Abandoned() Completer
}

// discard is a Completer that drops the outcome.
type discard struct{}

func (discard) Complete(*Answer, error) {}

// message stores the message of the request in m, which is zero: see Request.replyMessage.
func (out *Out) message(m *message) {
	m.body, m.attachment = out.Body, out.Attachment
	if out.Compressed {
		m.flags |= wire.Compressed
	}
	if out.Checksum {
		m.flags |= wire.HasChecksum
	}
	if out.OneWay {
		m.flags |= wire.OneWay
	}
}

// fieldsSize is an upper bound of the bytes that are sent in addition to body and attachment.
func (out *Out) fieldsSize() int { return wire.FieldsSize(&out.Fields) + len(out.Metadata) }

// addFields adds the fields of the request to its message. Timeout is the time until the deadline,
// in microseconds.
func (out *Out) addFields(m *message, timeout uint64) {
	if !out.sent && (out.Bare || out.Fields.OnlyUsual()) {
		m.timeout, m.metadata, m.budget = timeout, out.Metadata, out.Budget
		return
	}
	m.fields, out.sent = &out.Fields, true
	m.fields.Timeout, m.fields.Metadata, m.fields.Budget = timeout, out.Metadata, out.Budget
}

// counted returns how many bytes of the window a request takes. A stream may be open for ever, so
// the opening request of a stream takes bytes of the window only if it has more than one frame.
func (out *Out) counted(m *message) int {
	if m.simple() && out.Stream == nil {
		return len(m.body)
	}
	_, size := m.pieces()
	if out.Stream != nil && out.fieldsSize()+size <= maxPart {
		return 0
	}
	return size
}
