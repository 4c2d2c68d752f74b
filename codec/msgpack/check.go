// SPDX-License-Identifier: Apache-2.0

package msgpack

import (
	"errors"
	"io"
)

// Both libraries trust a message: they allocate as many elements as it announces, and nest as deep
// as it does. Either can end the process, for lack of memory or stack. So this package checks a
// message first. The message must have every element that it announces, and a depth for which the
// stack suffices.

var (
	errBehind    = errors.New("bytes behind the message")
	errDamaged   = errors.New("damaged message")
	errDeep      = errors.New("nested too deep")
	errExtension = errors.New("an extension where there should be another value")
)

// maxDepth is the maximum depth of a message, as in encoding/json.
const maxDepth = 10_000

// A checked is the input of vmihailenco's decoder, after a check.
//
// If that decoder expects a map and finds an extension, it reads the content of the extension as
// the map, although the content can be any bytes. A checked returns an error if the decoder reads
// the code of a value from an extension.
type checked struct {
	src        []byte
	at         int
	extensions []span // the contents of the extensions, in order
	passed     int    // how many of them begin before at
}

// A span is a part of src.
type span struct{ from, to int }

func (c *checked) reset(src []byte) {
	c.src, c.at, c.extensions, c.passed = src, 0, c.extensions[:0], 0
}

// ReadByte reads the code of a value, or a length of one byte.
func (c *checked) ReadByte() (byte, error) {
	for c.passed < len(c.extensions) && c.extensions[c.passed].to <= c.at {
		c.passed++
	}
	if c.passed < len(c.extensions) && c.extensions[c.passed].from <= c.at {
		return 0, errExtension
	}
	if c.at == len(c.src) {
		return 0, io.ErrUnexpectedEOF
	}
	c.at++
	return c.src[c.at-1], nil
}

// UnreadByte undoes the last ReadByte.
func (c *checked) UnreadByte() error {
	c.at--
	return nil
}

// Read reads the content of a value.
func (c *checked) Read(b []byte) (int, error) {
	if c.at == len(c.src) && len(b) > 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(b, c.src[c.at:])
	c.at += n
	return n, nil
}

// check returns an error unless the message is exactly one value. It then returns to the beginning
// of the message.
func (c *checked) check() error {
	err := c.value(0)
	if err == nil && c.at < len(c.src) {
		err = errBehind
	}
	c.at = 0
	return err
}

// value skips a value that is depth levels below the message.
func (c *checked) value(depth int) error {
	if c.at == len(c.src) {
		return errDamaged
	}
	code := c.src[c.at]
	c.at++
	switch {
	case code < 0x80 || code >= 0xe0: // a number in the code itself
		return nil
	case code < 0x90:
		return c.elements(2*uint64(code&0xf), depth) // of a map
	case code < 0xa0:
		return c.elements(uint64(code&0xf), depth) // of an array
	case code < 0xc0:
		return c.skip(uint64(code & 0x1f)) // a string
	}
	switch code {
	case 0xc0, 0xc2, 0xc3: // nil, false, true
		return nil
	case 0xca, 0xcb: // floats of 4 and 8 bytes
		return c.skip(4 << (code - 0xca))
	case 0xcc, 0xcd, 0xce, 0xcf: // unsigned numbers of 1, 2, 4 and 8 bytes
		return c.skip(1 << (code - 0xcc))
	case 0xd0, 0xd1, 0xd2, 0xd3: // signed ones
		return c.skip(1 << (code - 0xd0))
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // extensions of 1, 2, 4, 8 and 16 bytes
		return c.extension(1 << (code - 0xd4))
	}
	return c.announced(code, depth)
}

// announced skips a value whose code is followed by a length.
func (c *checked) announced(code byte, depth int) error {
	switch code {
	case 0xc4, 0xc5, 0xc6: // bytes
		return c.skip(c.length(1 << (code - 0xc4)))
	case 0xc7, 0xc8, 0xc9:
		return c.extension(c.length(1 << (code - 0xc7)))
	case 0xd9, 0xda, 0xdb: // strings
		return c.skip(c.length(1 << (code - 0xd9)))
	case 0xdc, 0xdd: // arrays
		return c.elements(c.length(2<<(code-0xdc)), depth)
	case 0xde, 0xdf: // maps
		return c.elements(2*c.length(2<<(code-0xde)), depth)
	}
	return errDamaged
}

// length reads a length of size bytes. If they are missing, it returns a length that exceeds any
// message.
func (c *checked) length(size int) uint64 {
	if size > len(c.src)-c.at {
		return 1 << 60
	}
	var n uint64
	for range size {
		n = n<<8 | uint64(c.src[c.at])
		c.at++
	}
	return n
}

func (c *checked) skip(n uint64) error {
	if n > uint64(len(c.src)-c.at) {
		return errDamaged
	}
	c.at += int(n) //nolint:gosec // G115: it is in src
	return nil
}

func (c *checked) elements(n uint64, depth int) error {
	if n > uint64(len(c.src)-c.at) {
		return errDamaged
	}
	if depth == maxDepth {
		return errDeep
	}
	for range n {
		if err := c.value(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

// extension skips the type of an extension and n bytes. An empty extension is an error: the decoder
// would read the next value as its content, and could so nest deeper than the check allows.
func (c *checked) extension(n uint64) error {
	if n == 0 {
		return errDamaged
	}
	from := c.at + 1
	if err := c.skip(n + 1); err != nil {
		return err
	}
	c.extensions = append(c.extensions, span{from, c.at})
	return nil
}
