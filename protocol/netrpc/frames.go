// SPDX-License-Identifier: Apache-2.0

package netrpc

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
)

// A frames reads a stream of gobs message by message. It decodes only headers. A value that is
// decoded elsewhere needs the definitions of types that came before it: see body.
type frames struct {
	reader      *bufio.Reader
	headers     *gob.Decoder // reads fed
	fed         bytes.Buffer // definitions and headers that headers has not read yet
	definitions []byte       // all that have come
}

func newFrames(r *bufio.Reader) *frames {
	f := &frames{reader: r}
	f.headers = gob.NewDecoder(&f.fed)
	return f
}

// header decodes the next value, of at most limit bytes, into v.
func (f *frames) header(v any, limit int) error {
	size, err := f.toValue()
	if err != nil {
		return err
	}
	if size > limit {
		return fmt.Errorf("a header has %d bytes, the limit is %d", size, limit)
	}
	if _, err = io.CopyN(&f.fed, f.reader, int64(size)); err != nil {
		return unexpected(err)
	}
	if err = f.headers.Decode(v); err != nil {
		return fmt.Errorf("decode a header: %w", err)
	}
	return nil
}

// body returns the definitions and the next value, which has size bytes, in memory of its own.
func (f *frames) body(size int) ([]byte, error) {
	b := make([]byte, len(f.definitions)+size)
	_, err := io.ReadFull(f.reader, b[copy(b, f.definitions):])
	return b, unexpected(err)
}

// skip discards the next value, which has size bytes.
func (f *frames) skip(size int) error {
	_, err := io.CopyN(io.Discard, f.reader, int64(size))
	return unexpected(err)
}

// toValue reads to the next message that is a value, and keeps the definitions of types before it.
// It returns the size of that message with its length.
func (f *frames) toValue() (size int, err error) {
	for {
		length, n, err := f.peekUint(0)
		if err != nil {
			return 0, err
		}
		id, idSize, err := f.peekUint(n)
		if err != nil {
			return 0, unexpected(err)
		}
		if length < uint64(idSize) || length > math.MaxInt32 { //nolint:gosec // positive
			return 0, fmt.Errorf("a message has %d bytes", length)
		}
		size = n + int(length) //nolint:gosec // checked
		if id&1 == 0 {         // the ID of a type; that of a definition is negative
			return size, nil
		}
		if len(f.definitions)+size > maxDefinitions {
			return 0, fmt.Errorf("the definitions of types have more than %d bytes", maxDefinitions)
		}
		at := len(f.definitions)
		f.definitions = append(f.definitions, make([]byte, size)...)
		if _, err := io.ReadFull(f.reader, f.definitions[at:]); err != nil {
			return 0, unexpected(err)
		}
		f.fed.Write(f.definitions[at:])
	}
}

// peekUint returns the number that begins at an offset, and how many bytes it takes, without
// reading on.
func (f *frames) peekUint(at int) (x uint64, size int, err error) {
	for n := 1; ; n++ {
		b, err := f.reader.Peek(at + n)
		if err != nil {
			if len(b) > 0 {
				err = unexpected(err)
			}
			return 0, 0, err
		}
		switch x, size := uintOf(b[at:]); {
		case size > 0:
			return x, size, nil
		case size < 0:
			return 0, 0, errors.New("it is not a gob")
		}
	}
}

// valueAt returns where the value begins in a sequence of whole messages: behind the definitions of
// types.
func valueAt(b []byte) int {
	for at := 0; at < len(b); {
		length, n := uintOf(b[at:])
		id, _ := uintOf(b[at+n:])
		if n <= 0 || id&1 == 0 {
			return at
		}
		at += n + int(length) //nolint:gosec // an encoder wrote it
	}
	return len(b)
}
