// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
)

// A frame is, with all numbers in big endian:
//
//	byte    magic
//	byte    version, which rpcx does not check
//	byte    flags: message type, heartbeat, one-way, compress type, status
//	byte    serialize type in the upper four bits
//	uint64  sequence number
//	uint32  length of all that follows
//	…       service path, service method, metadata and payload, each after its length as a uint32
const (
	magic = 0x08

	response    byte = 0x80 // otherwise a request
	heartbeat   byte = 0x40
	oneWay      byte = 0x20
	compressed  byte = 0x1c // the mask of the compress type
	failed      byte = 0x01 // in the mask of the status
	gzipped     byte = 0x04 // the compress type 1
	headSize         = 16
	smallest         = 16      // the lengths of the four parts
	maxName          = 4 << 10 // of a service path, and of a service method, in bytes
	mostDefault      = 1024    // the largest payload that is not compressed, in bytes
)

// A head is a frame without its payload.
type head struct {
	version   byte
	flags     byte
	serialize byte // the serialize type
	seq       uint64
	path      string
	method    string
	metadata  string // the pairs, as they came
	pairs     int    // the number of pairs in metadata
	excess    string // why the metadata was skipped, or ""
	payload   int    // the size of the payload
}

func (h *head) is(flag byte) bool { return h.flags&flag != 0 }

// compressType returns the compress type: 0 is none.
func (h *head) compressType() byte { return h.flags & compressed >> 2 }

// isPush reports whether the frame is a message that the server sends without being asked.
func (h *head) isPush() bool { return h.flags&(response|heartbeat|oneWay) == oneWay }

// name returns the name of the method in yodel.
func (h *head) name() string {
	if h.path == "" {
		return h.method
	}
	return h.path + "." + h.method
}

// size returns how many bytes the head has on the wire.
func (h *head) size() int { return headSize + smallest + len(h.path) + len(h.method) + len(h.metadata) }

// append appends the frame up to its payload, of h.payload bytes, to b.
func (h *head) append(b []byte) []byte {
	b = slices.Grow(b, h.size())
	b = append(b, magic, h.version, h.flags, h.serialize<<4)
	b = binary.BigEndian.AppendUint64(b, h.seq)
	b = binary.BigEndian.AppendUint32(b, uint32(h.size()-headSize+h.payload)) //nolint:gosec // the limits of messages are smaller
	for _, part := range []string{h.path, h.method, h.metadata} {
		b = appendPart(b, part)
	}
	return binary.BigEndian.AppendUint32(b, uint32(h.payload)) //nolint:gosec // as above
}

// setPayload makes the last n bytes of a frame its payload, which its head was written without.
func setPayload(frame []byte, n int) {
	binary.BigEndian.PutUint32(frame[headSize-4:], uint32(len(frame)-headSize)) //nolint:gosec // the limits of messages are smaller
	binary.BigEndian.PutUint32(frame[len(frame)-n-4:], uint32(n))               //nolint:gosec // as above
}

// setFlag sets a flag in the head of a frame.
func setFlag(frame []byte, flag byte) { frame[2] |= flag }

func appendPart(b []byte, part string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...) //nolint:gosec // the limits are smaller
}

// A frameReader reads frames. Its buffer must have room for the largest metadata.
type frameReader struct {
	*bufio.Reader
	maxMetadata int
	maxPairs    int

	path, method string // of the last frame, for the next one, which often has the same
}

// Errors of frames that no implementation of rpcx writes.
var (
	errMagic    = errors.New("a frame does not begin with 0x08")
	errLengths  = errors.New("the lengths in a frame do not fit its length")
	errPairs    = errors.New("the lengths in the metadata of a frame do not fit its length")
	errTooLarge = errors.New("a frame is too large")
)

// next is read for a new head.
func (r *frameReader) next() (h *head, err error) {
	h = new(head)
	if err = r.read(h); err != nil {
		return nil, err
	}
	return h, nil
}

// read reads a frame up to its payload into h, which is empty. The caller must read or skip the
// payload next. Metadata beyond the limits is skipped, and h.excess says so. Read copies only bytes
// that have arrived.
func (r *frameReader) read(h *head) error {
	b, err := r.Peek(headSize)
	if err != nil {
		if len(b) > 0 {
			err = framebody.Unexpected(err)
		}
		return err
	}
	if b[0] != magic {
		return errMagic
	}
	h.version, h.flags, h.serialize, h.seq = b[1], b[2], b[3]>>4, binary.BigEndian.Uint64(b[4:])
	total := uint64(binary.BigEndian.Uint32(b[12:]))
	if total < smallest {
		return errLengths
	}
	_, _ = r.Discard(headSize) // the bytes are in the buffer
	rest := &total
	if err = r.name(&r.path, rest, 3); err != nil {
		return err
	}
	if err = r.name(&r.method, rest, 2); err != nil {
		return err
	}
	h.path, h.method = r.path, r.method
	if err = r.pairs(h, rest); err != nil {
		return err
	}
	n, err := r.length(rest, 0)
	if err != nil {
		return err
	}
	if uint64(n) != *rest {
		return errLengths
	}
	h.payload = n
	return nil
}

// length reads the length of a part that more parts follow. Rest is how many bytes of the frame are
// left.
func (r *frameReader) length(rest *uint64, more uint64) (int, error) {
	b, err := r.Peek(4)
	if err != nil {
		return 0, framebody.Unexpected(err)
	}
	n := binary.BigEndian.Uint32(b)
	_, _ = r.Discard(4) // the bytes are in the buffer
	*rest -= 4          // the caller has checked that the lengths of all parts fit
	if uint64(n)+4*more > *rest {
		return 0, errLengths
	}
	if int64(n) > int64(maxPayload) {
		return 0, errTooLarge
	}
	return int(n), nil
}

// maxPayload is the largest payload that an int can count on every platform.
const maxPayload = 1<<31 - 1

// name reads the service path or the service method. It leaves name as it is if that is the same.
func (r *frameReader) name(name *string, rest *uint64, more uint64) error {
	n, err := r.length(rest, more)
	if err != nil {
		return err
	}
	if n > maxName {
		return fmt.Errorf("a name in a frame has %d bytes, the limit is %d", n, maxName)
	}
	return r.text(name, n, rest)
}

// text reads n bytes, which must fit in the buffer. It leaves text as it is if that is the same.
func (r *frameReader) text(text *string, n int, rest *uint64) error {
	b, err := r.Peek(n)
	if err != nil {
		return framebody.Unexpected(err)
	}
	if string(b) != *text {
		*text = string(b)
	}
	_, _ = r.Discard(n) // the bytes are in the buffer
	*rest -= uint64(n)
	return nil
}

// pairs reads the metadata.
func (r *frameReader) pairs(h *head, rest *uint64) error {
	n, err := r.length(rest, 1)
	if err != nil {
		return err
	}
	if n > r.maxMetadata {
		h.excess = fmt.Sprintf("the metadata has %d bytes, the limit is %d", n, r.maxMetadata)
		*rest -= uint64(n)
		return r.skip(n)
	}
	if err = r.text(&h.metadata, n, rest); err != nil {
		return err
	}
	if h.pairs, err = countPairs(h.metadata); err != nil {
		return err
	}
	if h.pairs > r.maxPairs {
		h.excess = fmt.Sprintf("the metadata has %d pairs, the limit is %d", h.pairs, r.maxPairs)
		h.metadata, h.pairs = "", 0
	}
	return nil
}

// skip discards n bytes.
func (r *frameReader) skip(n int) error { return framebody.Skip(r.Reader, n) }

// body reads a payload of n bytes.
func (r *frameReader) body(n int) ([]byte, error) {
	return framebody.Read(nil, r.Reader, n, framebody.Uncounted{})
}

// countPairs returns the number of pairs in metadata.
func countPairs(metadata string) (n int, err error) {
	for len(metadata) > 0 {
		if _, _, metadata, err = cutPair(metadata); err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// cutPair returns the first pair of metadata, and the rest.
func cutPair(metadata string) (key, value, rest string, err error) {
	if key, rest, err = cutText(metadata); err == nil {
		value, rest, err = cutText(rest)
	}
	return key, value, rest, err
}

func cutText(s string) (text, rest string, err error) {
	if len(s) < 4 {
		return "", "", errPairs
	}
	n := uint64(s[0])<<24 | uint64(s[1])<<16 | uint64(s[2])<<8 | uint64(s[3])
	if n > uint64(len(s)-4) {
		return "", "", errPairs
	}
	return s[4 : 4+n], s[4+n:], nil
}

// appendPair appends a pair to metadata.
func appendPair(metadata []byte, key, value string) []byte {
	return appendPart(appendPart(metadata, key), value)
}
