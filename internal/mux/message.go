// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/binary"

	"github.com/yodel-rpc/yodel/internal/parts"
	"github.com/yodel-rpc/yodel/internal/wire"
)

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

// pieces returns the parts of the message and their total size.
func (m *message) pieces() (all parts.Parts, size int) {
	if m.attachment != nil {
		m.flags |= wire.HasAttachment
		n := binary.PutUvarint(m.prefix[:], uint64(len(m.body)))
		all[0] = m.prefix[:n]
	}
	all[1], all[2] = m.body, m.attachment
	return all, all.Size()
}

// remainder returns rest as slices of the body and the attachment, and not as slices that were
// taken from m. With slices from m, m would escape to the heap. The prefix is always in the opening
// frame.
func (m *message) remainder(rest parts.Parts) parts.Parts {
	return parts.Parts{1: m.body[len(m.body)-len(rest[1]):], 2: m.attachment[len(m.attachment)-len(rest[2]):]}
}

// appendMessageLocked appends the opening frame h of m. It returns the parts that do not fit.
// sendRestAndUnlock sends them.
func (w *writing) appendMessageLocked(h wire.Header, m *message) (rest parts.Parts) {
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
func (w *writing) appendAnyLocked(h wire.Header, m *message) (rest parts.Parts) {
	all, size := m.pieces()
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
			room = all.Opening(room, maxPart)
		}
		rest = w.appendPartsLocked(all, room)
		w.finishLocked(start)
		return rest
	}
	start := w.beginLocked(h)
	w.appendPartsLocked(all, room)
	w.finishLocked(start)
	return rest
}

// appendPartsLocked appends up to room bytes of p and returns the remainder.
func (w *writing) appendPartsLocked(p parts.Parts, room int) (rest parts.Parts) {
	w.out, rest = parts.Append(w.out, &p, room)
	return rest
}
