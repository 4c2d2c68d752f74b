// SPDX-License-Identifier: Apache-2.0

// Package records keeps the messages of a stream between the goroutine that reads the connection
// and the goroutine that consumes them. A record is a header and a message. A message that arrived
// as one frame is kept with its frame header, so the messages of one read, often hundreds, are
// received by copying them.
package records

import (
	"math/bits"

	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/spares"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// gathered is the type of a record whose message did not arrive as one simple frame. It has the
// cost of the message in place of an id.
const gathered wire.Type = 0

// A Buffer has the messages that have arrived. The zero value is empty. A lock of the owner guards
// it.
type Buffer struct {
	b        []byte // records; the last one may be incomplete
	complete int    // bytes of b that are complete records
	want     int    // the size of the incomplete message, or 0
	pending  uint64 // the cost of its pieces that is not consumed yet
}

// Complete returns how many bytes the complete records have.
func (b *Buffer) Complete() int { return b.complete }

// Whole reports whether no message is incomplete.
func (b *Buffer) Whole() bool { return len(b.b) == b.complete }

// Want returns the size of the incomplete message, or 0.
func (b *Buffer) Want() int { return b.want }

// Pending returns the cost of the pieces of the incomplete message that ConsumePieces has not
// returned yet.
func (b *Buffer) Pending() uint64 { return b.pending }

// ConsumePieces returns Pending, which is then 0.
func (b *Buffer) ConsumePieces() (cost uint64) {
	cost, b.pending = b.pending, 0
	return cost
}

// AddFrames adds messages that are frames.
func (b *Buffer) AddFrames(frames []byte, memory *spares.Set) {
	b.store(frames, memory)
	b.complete = len(b.b)
}

// store appends bytes. For many bytes it reuses memory of streams that have ended. Without that,
// growing the buffer for 10,000 messages of 128 bytes would take twice the memory of the messages.
func (b *Buffer) store(p []byte, memory *spares.Set) {
	if n := len(b.b) + len(p); n > cap(b.b) && n >= spares.Least {
		grown := append(memory.Take(1<<bits.Len(uint(n))), b.b...)
		memory.Give(b.b)
		b.b = grown
	}
	b.b = append(b.b, p...)
}

// Open begins a message of size bytes, which AddPiece completes.
func (b *Buffer) Open(size int, flags wire.Flags) {
	b.want = size
	b.b = wire.Begin(b.b, &wire.Header{Type: gathered, Flags: flags})
}

// AddPiece adds a piece to the incomplete message. Last says that it is the last one. Trusted says
// that memory for the whole message is counted. AddPiece returns an error if the message does not
// have the announced size.
func (b *Buffer) AddPiece(piece []byte, cost uint64, last, trusted bool, memory *spares.Set) error {
	have := len(b.b) - b.complete - wire.HeaderSize + len(piece)
	switch {
	case have > b.want:
		return collect.ErrLonger
	case last && have < b.want:
		return collect.ErrShorter
	}
	// Enough bytes have arrived to believe the announced size. Unlike append, make takes new memory
	// from the system without touching it. Touching it would block the connection for milliseconds.
	if n := len(b.b) + b.want - have + len(piece); trusted && have > collect.FirstGrant && n > cap(b.b) {
		b.b = append(make([]byte, 0, n), b.b...)
	}
	b.store(piece, memory)
	b.pending += cost
	if !last {
		return nil
	}
	record := b.b[b.complete:]
	h := wire.Header{Type: gathered, Flags: wire.ParseHeader(record).Flags, Len: uint32(have), ID: uint32(b.pending)} //nolint:gosec // within MaxMessage, and the window
	wire.PutHeader(record, &h)
	b.complete, b.want, b.pending = len(b.b), 0, 0
	return nil
}

// Cut drops the incomplete message.
func (b *Buffer) Cut() { b.b, b.want, b.pending = b.b[:b.complete], 0, 0 }

// Free drops all messages, and gives their memory to memory unless that is nil.
func (b *Buffer) Free(memory *spares.Set) {
	if memory != nil {
		memory.Give(b.b)
	}
	*b = Buffer{}
}

// Taken has the messages that the consumer has taken from a Buffer. The consumer owns it.
type Taken struct {
	b  []byte
	at int // how much of b Next has returned
}

// Left returns how many bytes Next has not returned yet, headers included.
func (t *Taken) Left() int { return len(t.b) - t.at }

// Next returns the next message, and what it costs in the window of the stream.
func (t *Taken) Next() (msg []byte, flags wire.Flags, cost uint64) {
	record := t.b[t.at:]
	h := wire.ParseHeader(record)
	n := wire.HeaderSize + int(h.Len)
	t.at += n
	if cost = uint64(n); h.Type == gathered {
		cost = uint64(h.ID)
	}
	return record[wire.HeaderSize:n:n], h.Flags, cost
}

// Refill takes all complete messages of a Buffer, when Left is 0. The Buffer gets the memory of
// those that Next has returned, unless that is larger than the bound most.
func (t *Taken) Refill(from *Buffer, most int, memory *spares.Set) {
	spare := t.b[:0]
	if cap(spare) > most {
		memory.Give(spare)
		spare = nil
	}
	t.b, t.at = from.b[:from.complete], 0
	from.b, from.complete = append(spare, from.b[from.complete:]...), 0
}

// Free is Buffer.Free.
func (t *Taken) Free(memory *spares.Set) {
	if memory != nil {
		memory.Give(t.b)
	}
	t.b, t.at = nil, 0
}
