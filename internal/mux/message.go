// SPDX-License-Identifier: Apache-2.0

package mux

import "github.com/yodel-rpc/yodel/internal/wire"

// This file appends messages to the output.

// A message is the content of a Request, a Reply or a piece of stream data.
type message struct {
	fields     *wire.Fields // nil when timeout, metadata and budget are the only fields
	timeout    uint64       // timeout, metadata and budget are the usual fields
	metadata   []byte
	budget     uint64
	flags      wire.Flags // Compressed, HasChecksum, End, OneWay, NotProcessed
	body       []byte
	attachment []byte
	prefix     [10]byte // the length of the body, if there is an attachment
}

// simple reports whether the message is a small body and nothing else. This is true for most
// messages, and the short path saves about 40 ns for each of them.
func (m *message) simple() bool { return m.plain() && !m.hasUsual() }

// plain reports whether the message is a small body, with at most the usual fields.
func (m *message) plain() bool {
	return m.fields == nil && m.attachment == nil && m.flags&wire.HasChecksum == 0 && len(m.body)+wire.UsualFieldsSize(m.metadata) <= maxPart
}

// hasUsual reports whether the message has one of the usual fields.
func (m *message) hasUsual() bool { return m.timeout|m.budget != 0 || len(m.metadata) > 0 }

// Pieces are consecutive parts of a message.
type pieces [3][]byte

func (p *pieces) size() int { return len(p[0]) + len(p[1]) + len(p[2]) }

// pieces returns the parts of the message and their total size.
func (m *message) pieces() (parts pieces, size int) {
	if m.attachment != nil {
		m.flags |= wire.HasAttachment
		n := putUvarint(m.prefix[:], uint64(len(m.body)))
		parts[0] = m.prefix[:n]
	}
	parts[1], parts[2] = m.body, m.attachment
	return parts, parts.size()
}

// opening returns how many bytes of a large message go into the opening frame, which has space for
// room bytes. Both sides copy the bytes of the opening frame. They do not copy the bytes of the
// other frames, but each of those frames costs a read. So if a message is only a little longer than
// room, it fills the opening frame. Otherwise the opening frame takes the bytes that would not fill
// a whole further frame, if they are few. It always takes the prefix.
func (p *pieces) opening(room int) int {
	prefix, size := len(p[0]), p.size()
	if size-room <= little {
		return room
	}
	if odd := (size - prefix) % maxPart; odd <= little {
		return prefix + odd
	}
	return prefix
}

// remainder returns rest as slices of the body and the attachment, and not as slices that were
// taken from m. With slices from m, m would escape to the heap. The prefix is always in the opening
// frame.
func (m *message) remainder(rest pieces) pieces {
	return pieces{1: m.body[len(m.body)-len(rest[1]):], 2: m.attachment[len(m.attachment)-len(rest[2]):]}
}

// take removes the first n bytes and returns them.
func (p *pieces) take(n int) (taken pieces) {
	for i, part := range p {
		k := min(len(part), n)
		taken[i], p[i] = part[:k], part[k:]
		n -= k
	}
	return taken
}

// appendMessageLocked appends the opening frame h of m. It returns the parts that do not fit.
// sendRestAndUnlock sends them.
func (w *writing) appendMessageLocked(h wire.Header, m *message) (rest pieces) {
	switch {
	case !m.plain():
		return w.appendAnyLocked(h, m)
	case m.hasUsual():
		w.appendPlainLocked(h, m)
	default:
		h.Flags |= m.flags
		start := len(w.out)
		w.out = wire.AppendFrame(w.out, &h, m.body)
		w.countFrameLocked(len(w.out) - start)
	}
	return rest
}

// appendPlainLocked is appendMessageLocked for a small body with usual fields.
func (w *writing) appendPlainLocked(h wire.Header, m *message) {
	h.Flags |= m.flags | wire.HasFields
	start := w.beginLocked(h)
	w.out = append(wire.AppendUsualFields(w.out, m.timeout, m.metadata, m.budget), m.body...)
	w.finishLocked(start)
}

// appendAnyLocked is appendMessageLocked for every other message. It needs a large stack frame.
func (w *writing) appendAnyLocked(h wire.Header, m *message) (rest pieces) {
	parts, size := m.pieces()
	h.Flags |= m.flags
	room := maxPart
	if m.fields != nil || m.hasUsual() || size > room {
		h.Flags |= wire.HasFields
		fields := m.fields
		if fields == nil {
			fields = &wire.Fields{Timeout: m.timeout, Metadata: m.metadata, Budget: m.budget}
		}
		room -= wire.FieldsSize(fields)
		if size > room {
			h.Flags |= wire.More
			fields.Size = uint64(size)
		}
		start := w.beginLocked(h)
		w.out = wire.AppendFields(w.out, fields)
		fields.Size = 0 // the size belongs to this frame only
		if size > room {
			room = parts.opening(room)
		}
		rest = w.appendPartsLocked(parts, room)
		w.finishLocked(start)
		return rest
	}
	start := w.beginLocked(h)
	w.appendPartsLocked(parts, room)
	w.finishLocked(start)
	return rest
}

// appendPartsLocked appends up to room bytes of parts and returns the remainder.
func (w *writing) appendPartsLocked(parts pieces, room int) (rest pieces) {
	for i, part := range parts {
		n := min(len(part), room)
		w.out = append(w.out, part[:n]...)
		room -= n
		rest[i] = part[n:]
	}
	return rest
}

func putUvarint(b []byte, n uint64) int {
	i := 0
	for n >= 0x80 {
		b[i] = byte(n) | 0x80
		n >>= 7
		i++
	}
	b[i] = byte(n)
	return i + 1
}

// little is how many bytes are copied rather than sent or read separately.
const little = 4 << 10
