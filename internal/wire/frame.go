// SPDX-License-Identifier: Apache-2.0

// Package wire implements the byte layout of yodel's native protocol. It only appends and parses
// frames. The rules are in spec/wire.md. Integers of fixed size are little endian.
//
// Parsers never allocate memory, and never keep a reference to their input. Byte slices in their
// results alias the input.
package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// Magic begins the preface: a byte that no text protocol, TLS, gob or HTTP/2 connection begins
// with, and a name.
const Magic = "\xf5yodel"

// Preface is what each side sends first: the magic, the version, and a byte kept for later, which
// is 0.
const Preface = Magic + "\x01\x00"

// HeaderSize is how many bytes precede the payload of each frame.
const HeaderSize = 12

// A Type is the purpose of a frame. A receiver skips frames of unknown types from FirstSkippable.
// It closes the connection at a frame of any other unknown type.
type Type uint8

// The frame types.
const (
	Settings   Type = 1 + iota // the first frame of each side: what the sender accepts
	Method                     // Arg becomes a number for a method, its codec and its compressor
	MethodInfo                 // the answer to Method
	Request                    // opens a call of method number Arg
	Reply                      // ends a call, with code Arg
	Cancel                     // the opener no longer wants the result of a call, for reason Arg (a code)
	Data                       // continues a message, or is a message of a stream
	Credit                     // how much the receiver of this frame may still send
	Ping                       // asks for a Pong
	Pong                       // repeats the payload of a Ping
	GoAway                     // drain: no request after the first Count will be processed

	FirstSkippable Type = 0x80
)

// Flags qualify a frame. Their meaning depends on the type of the frame.
type Flags uint8

// The flags of frames that carry messages: Request, Reply and Data.
const (
	HasFields     Flags = 1 << iota // the payload begins with a block of fields
	More                            // the message continues in Data frames
	HasAttachment                   // the message begins with the length of its body, the attachment follows the body
	Compressed                      // the body is compressed
	HasChecksum                     // the payload ends in a CRC-32C of header and payload
	OfReply                         // on Data and Credit: the receiver of the frame opened the call
	End                             // on Data: the sender sends no more messages on this stream

	Waited       Flags = 0x80 // on Data of a stream: the sender had to wait for credit
	OneWay       Flags = 0x80 // on Request: the outcome is not wanted; without More the ID is 0 and there is no Reply
	NotProcessed Flags = 0x80 // on Reply: the method was certainly not executed
)

// A Header precedes each frame's payload.
type Header struct {
	Len   uint32 // bytes of payload
	Type  Type
	Flags Flags
	Arg   uint16 // a method number or a code, by type
	ID    uint32 // the call; of Method and MethodInfo any number; 0 for the connection
}

// An ID is a slot of the opener's call table and a generation that is never 0.
const (
	SlotBits = 20
	MaxSlots = 1 << SlotBits
	maxGen   = 1<<(32-SlotBits) - 1
)

// Slot returns the slot part of a call's id.
func Slot(id uint32) uint32 { return id & (MaxSlots - 1) }

// NextID returns the id that a slot gets after id. If only the slot part of id is set, it returns
// the first id of that slot.
func NextID(id uint32) uint32 {
	gen := id>>SlotBits + 1
	if gen > maxGen {
		gen = 1
	}
	return gen<<SlotBits | Slot(id)
}

// PutHeader writes h to the first HeaderSize bytes of b.
func PutHeader(b []byte, h *Header) {
	putHeader(b, h.Len, h)
}

// putHeader writes h with another length. H is a pointer, because a copy of it costs ten times
// more: the processor waits to load the fields, which were just stored, in one piece.
func putHeader(b []byte, length uint32, h *Header) {
	_ = b[HeaderSize-1]
	binary.LittleEndian.PutUint32(b, length)
	b[4] = byte(h.Type)
	b[5] = byte(h.Flags)
	binary.LittleEndian.PutUint16(b[6:], h.Arg)
	binary.LittleEndian.PutUint32(b[8:], h.ID)
}

// ParseHeader reads a header that PutHeader wrote.
func ParseHeader(b []byte) Header {
	_ = b[HeaderSize-1]
	return Header{
		Len:   binary.LittleEndian.Uint32(b),
		Type:  Type(b[4]),
		Flags: Flags(b[5]),
		Arg:   binary.LittleEndian.Uint16(b[6:]),
		ID:    binary.LittleEndian.Uint32(b[8:]),
	}
}

// Begin appends a header whose length is not known yet. The caller then appends the payload, and
// calls Finish, which sets the length.
func Begin(dst []byte, h *Header) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	PutHeader(dst[n:], h)
	return dst
}

// Finish completes the frame that Begin started at offset start: it appends the checksum if the
// header announces one, and sets the length.
func Finish(dst []byte, start int) []byte {
	n := len(dst) - start - HeaderSize
	if Flags(dst[start+5])&HasChecksum != 0 {
		n += ChecksumSize
		binary.LittleEndian.PutUint32(dst[start:], uint32(n)) //nolint:gosec // a frame is far below 4 GiB
		return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
	}
	binary.LittleEndian.PutUint32(dst[start:], uint32(n)) //nolint:gosec // a frame is far below 4 GiB
	return dst
}

// AppendFrame appends a whole frame with this payload. The header must not announce a checksum.
func AppendFrame(dst []byte, h *Header, payload []byte) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	putHeader(dst[n:], uint32(len(payload)), h) //nolint:gosec // a frame is far below 4 GiB
	return append(dst, payload...)
}

// What is wrong with a frame.
var (
	ErrTruncated = errors.New("it ends too early")
	ErrVarint    = errors.New("a number in it is longer than 64 bits")
	ErrChecksum  = errors.New("its checksum does not match")
	ErrBounds    = errors.New("a part of it is longer than the protocol allows")
)

// ChecksumSize is how many bytes a checksum takes.
const ChecksumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Payload returns the payload of the frame that begins at frame[0] without its checksum, which it
// verifies. The frame must be complete.
func Payload(frame []byte) ([]byte, error) {
	payload := frame[HeaderSize:]
	if Flags(frame[5])&HasChecksum == 0 {
		return payload, nil
	}
	n := len(frame) - ChecksumSize
	if n < HeaderSize {
		return nil, ErrTruncated
	}
	if crc32.Checksum(frame[:n], castagnoli) != binary.LittleEndian.Uint32(frame[n:]) {
		return nil, ErrChecksum
	}
	return frame[HeaderSize:n], nil
}

// SplitFields separates the block of fields from the message that follows it.
func SplitFields(flags Flags, payload []byte) (fields, message []byte, err error) {
	if flags&HasFields == 0 {
		return nil, payload, nil
	}
	if len(payload) < fieldsLenSize {
		return nil, nil, ErrTruncated
	}
	n := fieldsLenSize + int(binary.LittleEndian.Uint16(payload))
	if len(payload) < n {
		return nil, nil, ErrTruncated
	}
	return payload[fieldsLenSize:n], payload[n:], nil
}

// SplitBody separates the body of a whole message from its attachment.
func SplitBody(flags Flags, message []byte) (body, attachment []byte, err error) {
	if flags&HasAttachment == 0 {
		return message, nil, nil
	}
	n, size := binary.Uvarint(message)
	switch {
	case size == 0:
		return nil, nil, ErrTruncated
	case size < 0:
		return nil, nil, ErrVarint
	}
	message = message[size:]
	if n > uint64(len(message)) {
		return nil, nil, ErrTruncated
	}
	return message[:n:n], message[n:], nil
}
