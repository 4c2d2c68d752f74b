// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// streams is the role that bounds the memory that all streams of a connection may hold together.
// The file stream.go implements the single stream.
type streams struct {
	c *Conn
	*lazyStreams
	peerStream int32 // the peer's window for a stream
}

// lazyStreams is the part of streams that is allocated on first use.
type lazyStreams struct {
	reserved int // bytes that streams may hold beyond their smallest windows
	// the part of reserved for messages that have not arrived completely
	partial   int
	reserving []*Stream // streams that wait for a reservation
}

// noStreams is shared by all connections without a lazyStreams. Nothing changes it.
var noStreams = new(lazyStreams)

// lazyLocked returns the lazy part for writing to it.
func (ss *streams) lazyLocked() *lazyStreams { return ownPart(&ss.lazyStreams, noStreams) }

func (ss *streams) streamWindow() int {
	c := ss.c
	if c.cfg.StreamWindow <= 0 {
		return defaultStreamWindow
	}
	return min(max(c.cfg.StreamWindow, minStreamWindow), maxStreamWindow)
}

// beginStreamLocked connects the stream of a request, if there is one, to the call.
func (ss *streams) beginStreamLocked(out *Out, id uint32, flags wire.Flags) {
	c := ss.c
	st := out.Stream
	if st == nil {
		return
	}
	st.nth = c.callsOut.opened
	st.conn, st.kind, st.id, st.mark = c, out.Method.Kind, id, flags&wire.HasChecksum
	st.receiving.window = uint64(ss.streamWindow())
	if receiverSends(st.kind) {
		st.receiving.granted, st.receiving.least = st.receiving.window, int(st.receiving.window) //nolint:gosec // at most maxStreamWindow
		// this side opened the stream itself, so the bytes cannot be refused
		c.memory.Force(st.receiving.least)
	}
	c.callsOut.slots[wire.Slot(id)].stream = st
}

// streamLocked returns the stream that a frame belongs to, or nil if the stream has ended.
func (ss *streams) streamLocked(h wire.Header) *Stream {
	c := ss.c
	if h.Flags&wire.OfReply == 0 {
		if r := c.callsIn.findLocked(h.ID); r != nil {
			return r.stream
		}
	} else if s := c.callsOut.slotLocked(h.ID); s != nil {
		return s.stream
	}
	return nil
}

// reserveLocked reserves memory for the incomplete message of st, or puts st in the queue for a
// reservation. If there is not enough memory, st gets the reservation only if no other message is
// incomplete. It must get it then, because otherwise st would wait for consumers that may be
// waiting for st.
func (ss *streams) reserveLocked(st *Stream) bool {
	c := ss.c
	if len(ss.reserving) > 0 && !st.receiving.queued || ss.partial > 0 && ss.reserved+st.receiving.in.Want() > c.cfg.MaxOpenBytes {
		if !st.receiving.queued {
			st.receiving.queued = true
			ss.lazyLocked().reserving = append(ss.reserving, st)
		}
		return false
	}
	if !c.memory.Take(st.receiving.in.Want()) {
		st.receiving.closeReceiveLocked(memory.ErrFull)
		return false
	}
	st.receiving.reserved = st.receiving.in.Want()
	lazy := ss.lazyLocked()
	lazy.reserved += st.receiving.in.Want()
	lazy.partial += st.receiving.in.Want()
	return true
}

// widenLocked reserves n bytes for the window of a stream, unless the streams of the connection
// hold too much already.
func (ss *streams) widenLocked(n int) bool {
	c := ss.c
	most := c.cfg.MaxOpenBytes / 2
	if c.cfg.MaxMemory > 0 {
		most = c.cfg.MaxMemory / 2
	}
	if ss.reserved+n > most || !c.memory.Take(n) {
		return false
	}
	ss.lazyLocked().reserved += n
	return true
}

func (ss *streams) unreserveLocked(n *int) {
	if *n != 0 {
		ss.lazyLocked().reserved -= *n
		ss.c.memory.Give(*n)
		*n = 0
	}
	ss.admitStreamsLocked()
}

// admitStreamsLocked makes the reservations for which there is room, in the order of the queue.
func (ss *streams) admitStreamsLocked() {
	for len(ss.reserving) > 0 {
		next := ss.reserving[0]
		if !ss.reserveLocked(next) {
			return
		}
		ss.reserving = ss.reserving[1:]
		next.receiving.queued = false
		next.receiving.pieceLocked()
		next.receiving.creditLocked()
	}
}

// gathererLocked returns the message or the stream that a Data frame belongs to. Both are nil if
// the call was canceled or refused.
func (ss *streams) gathererLocked(h wire.Header) (p *collect.Message, st *Stream) {
	c := ss.c
	if h.Flags&wire.OfReply != 0 {
		if s := c.callsOut.slotLocked(h.ID); s != nil {
			p, st = s.part, s.stream
		}
	} else if r := c.callsIn.findLocked(h.ID); r != nil {
		p, st = r.collected, r.stream
	}
	return p, st
}
