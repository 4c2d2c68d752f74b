// SPDX-License-Identifier: Apache-2.0

// Package block has the common part of Snappy and S2: their blocks begin with the decompressed
// length.
package block

import (
	"encoding/binary"
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/yodel-rpc/yodel/compress"
)

// Append appends the result of encode for src to dst.
func Append(dst, src []byte, encode func(dst, src []byte) []byte) ([]byte, error) {
	n := s2.MaxEncodedLen(len(src))
	if n < 0 {
		return nil, s2.ErrTooLarge
	}
	dst = slices.Grow(dst, n)
	b := encode(dst[len(dst):len(dst)+n], src)
	return dst[:len(dst)+len(b)], nil
}

// believed is how many decompressed bytes a block may announce for each of its own bytes without a
// check of the block. No block of Snappy has more, and few blocks of S2 do.
const believed = 32

// Decompress appends the decompressed src to dst, if it has at most limit bytes. It allocates no
// more than that. If the announced length is large compared with src, Decompress checks the block
// before it allocates, because six bytes can announce any length.
func Decompress(dst, src []byte, limit int) ([]byte, error) {
	n, err := s2.DecodedLen(src)
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, compress.ErrTooLarge
	}
	if n/believed > len(src) && !decodesTo(src, n) {
		return nil, s2.ErrCorrupt
	}
	dst = slices.Grow(dst, n)
	b, err := s2.Decode(dst[len(dst):len(dst)+n], src)
	if err != nil {
		return nil, err
	}
	return dst[:len(dst)+len(b)], nil
}

// decodesTo reports whether a block decompresses to n bytes. It reads the elements without writing
// their output.
func decodesTo(src []byte, n int) bool {
	_, size := binary.Uvarint(src)
	src = src[size:]
	done, offset := 0, 0
	for len(src) > 0 {
		e, ok := nextElement(src)
		if !ok || e.size > len(src) || e.length <= 0 || e.length > n-done {
			return false
		}
		switch {
		case e.literal:
		case e.offset != 0:
			offset = e.offset
			fallthrough
		default: // an offset of 0 repeats the previous offset
			if offset <= 0 || offset > done || e.far && e.offset == 0 {
				return false
			}
		}
		done += e.length
		src = src[e.size:]
	}
	return done == n
}

// An element of a block is either literal bytes, or a copy of the bytes that begin offset bytes
// earlier.
type element struct {
	literal bool
	far     bool // whether the offset has its own field, in which 0 is not allowed
	offset  int
	length  int // decompressed
	size    int // in the block; too large if the block is truncated
}

// nextElement reads the first element of b, which is not empty.
func nextElement(b []byte) (e element, ok bool) {
	tag := b[0]
	number := func(at, size int) int { // little endian
		if at+size > len(b) {
			ok = false
			return 0
		}
		n := 0
		for i := range size {
			n |= int(b[at+i]) << (8 * i)
		}
		return n
	}
	ok = true
	switch tag & 3 {
	case 0:
		e.literal, e.length, e.size = true, int(tag>>2), 1
		if more := e.length - 59; more > 0 {
			e.length, e.size = number(1, more), 1+more
		}
		e.length++
		e.size += e.length
	case 1:
		e.offset, e.length, e.size = int(tag&0xe0)<<3|number(1, 1), int(tag>>2&7), 2
		if more := e.length - 4; e.offset == 0 && more > 0 {
			e.length, e.size = number(2, more)+[...]int{4, 1 << 8, 1 << 16}[more-1], 2+more
		}
		e.length += 4
	case 2:
		e.far, e.offset, e.length, e.size = true, number(1, 2), 1+int(tag>>2), 3
	case 3:
		e.far, e.offset, e.length, e.size = true, number(1, 4), 1+int(tag>>2), 5
	}
	return e, ok
}
