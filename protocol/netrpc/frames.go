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
	"slices"

	"github.com/yodel-rpc/yodel/internal/gobwire"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
)

// A frames reads the stream of the peer, message by message. It decodes only headers. It passes on
// a value together with the definitions of types that the value needs: see typeTable.
type frames struct {
	reader  *bufio.Reader
	most    int // the maximum size of a value in bytes
	headers *gob.Decoder
	fed     bytes.Buffer // the input of headers
	types   typeTable
	release func(n int)      // undoes types.reserve
	memory  framebody.Memory // counts the values that are read

	headerTypes int // number of types that headers have had
}

// newFrames returns a frames that reads from r. It does not count memory unless the caller sets
// types.reserve and release.
func newFrames(r *bufio.Reader, most int) *frames {
	f := &frames{reader: r, most: most, release: func(int) {}, memory: framebody.Uncounted{}}
	f.types.reserve = func(int) bool { return true }
	f.headers = gob.NewDecoder(&f.fed)
	return f
}

// A value is the next value of the stream, which has not been read yet.
type value struct {
	size        int    // of its first message, including the length
	definitions []byte // the definitions of types that it needs
	open        bool   // it contains interfaces, so further messages may belong to it
}

// cost returns about how many bytes the value takes with its definitions.
func (v value) cost() int {
	if v.open { // the definitions are known only when the value has been read
		return maxNeeded + v.size
	}
	return len(v.definitions) + v.size
}

// header decodes the next value, of at most limit bytes, into v.
func (f *frames) header(v any, limit int) error {
	size, id, err := f.toValue()
	if err != nil {
		return err
	}
	if size > limit {
		return fmt.Errorf("a header has %d bytes, the limit is %d", size, limit)
	}
	definitions, open, err := f.types.needs(id)
	if err != nil {
		return err
	}
	if open {
		return errors.New("a header has an interface in it")
	}
	if t := f.types.find(id); !t.sent {
		if f.headerTypes++; f.headerTypes > 1 {
			return errors.New("the headers have several types")
		}
		t.sent = true
		f.fed.Write(definitions)
	}
	if _, err = io.CopyN(&f.fed, f.reader, int64(size)); err != nil {
		return framebody.Unexpected(err)
	}
	if err = f.headers.Decode(v); err != nil {
		return fmt.Errorf("decode a header: %w", err)
	}
	return nil
}

// next reads up to the next value.
func (f *frames) next() (v value, err error) {
	size, id, err := f.toValue()
	if err != nil {
		return value{}, err
	}
	v.size = size
	v.definitions, v.open, err = f.types.needs(id)
	return v, err
}

// body reads v. It returns the definitions of types that v needs, followed by v, in newly allocated
// memory, whose capacity memory counts. If there is no memory, it returns a
// *framebody.RefusedError.
func (f *frames) body(v value) ([]byte, error) {
	if v.open {
		return f.openBody(v.size)
	}
	return framebody.Read(v.definitions, f.reader, v.size, f.memory)
}

// skip discards v.
func (f *frames) skip(v value) error {
	if v.open { // v may contain definitions
		b, err := f.openBody(v.size)
		f.memory.Release(cap(b))
		return err
	}
	return framebody.Skip(f.reader, v.size)
}

// openBody reads a value with interfaces, whose first message has size bytes. It returns the
// definitions of types that the value needs, followed by the value. Memory counts the capacity of
// the result. The end of a value that is not read is not known, so without memory for the value
// nothing that follows can be read.
func (f *frames) openBody(size int) ([]byte, error) {
	value, err := framebody.Read(nil, f.reader, size, f.memory)
	if _, ok := errors.AsType[*framebody.RefusedError](err); ok {
		return nil, errMemory
	} else if err != nil {
		return nil, err
	}
	counted := cap(value)
	defer func() { f.memory.Release(counted) }()
	reserved := 0
	defer func() { f.release(reserved) }()
	_, start := gobwire.Uint(value)
	definitions, err := f.types.complete(value[start:], func() ([]byte, error) {
		n, start, err := f.peekMessage()
		if err != nil {
			return nil, err
		}
		if len(value)+n > f.most {
			return nil, fmt.Errorf("a value has more than %d bytes", f.most)
		}
		if !f.types.reserve(n) {
			return nil, errMemory
		}
		reserved += n
		at := len(value)
		value = slices.Grow(value, n)[:at+n]
		_, err = io.ReadFull(f.reader, value[at:])
		return value[at+start:], err
	})
	n := len(definitions) + len(value)
	switch {
	case err != nil:
		return nil, err
	case !f.memory.Reserve(n):
		return nil, errMemory
	}
	return append(append(make([]byte, 0, n), definitions...), value...), nil
}

// toValue reads up to the next message with a value, and stores the definitions of types before it.
// It returns the size of that message including its length, and the number of its type.
func (f *frames) toValue() (size int, id int64, err error) {
	for {
		size, start, err := f.peekMessage()
		if err != nil {
			return 0, 0, err
		}
		number, n, err := f.peekUint(start)
		if err != nil {
			return 0, 0, framebody.Unexpected(err)
		}
		if start+n > size {
			return 0, 0, gobwire.ErrDamaged
		}
		if number&1 == 0 { // definitions have negative numbers
			return size, int64(number >> 1), nil
		}
		if size > maxDefinitions {
			return 0, 0, fmt.Errorf("the definition of a type has %d bytes, the limit is %d", size, maxDefinitions)
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(f.reader, message); err != nil {
			return 0, 0, framebody.Unexpected(err)
		}
		definition := &cursor{Cursor: gobwire.Cursor{Rest: message[start+n:]}}
		if _, err = f.types.define(^int64(number>>1), definition); err != nil {
			return 0, 0, err
		}
		if len(definition.Rest) > 0 {
			return 0, 0, gobwire.ErrDamaged
		}
	}
}

// peekMessage returns the size of the next message including its length, and the offset of its
// content.
func (f *frames) peekMessage() (size, start int, err error) {
	length, start, err := f.peekUint(0)
	if err != nil {
		return 0, 0, err
	}
	if length == 0 || length > math.MaxInt32 {
		return 0, 0, fmt.Errorf("a message has %d bytes", length)
	}
	return start + int(length), start, nil
}

// peekUint returns the number at an offset, and its size in bytes. It does not consume input.
func (f *frames) peekUint(at int) (x uint64, size int, err error) {
	for n := 1; ; n++ {
		b, err := f.reader.Peek(at + n)
		if err != nil {
			if len(b) > 0 {
				err = framebody.Unexpected(err)
			}
			return 0, 0, err
		}
		switch x, size := gobwire.Uint(b[at:]); {
		case size > 0:
			return x, size, nil
		case size < 0:
			return 0, 0, errors.New("it is not a gob")
		}
	}
}

// valueAt returns the offset of the value in a sequence of whole messages: it follows the
// definitions of types.
func valueAt(b []byte) int {
	for at := 0; at < len(b); {
		length, n := gobwire.Uint(b[at:])
		id, _ := gobwire.Uint(b[at+n:])
		if n <= 0 || id&1 == 0 {
			return at
		}
		at += n + int(length) //nolint:gosec // an encoder wrote it
	}
	return len(b)
}
