// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// A Reader reads the JSON values of a connection, each of which is an object or an array. Spaces
// and newlines between them are optional. One goroutine may use it at a time.
type Reader struct {
	// Source is the connection.
	Source *bufio.Reader
	// Limit is the largest size of a value, in bytes.
	Limit int
	// Reserve and Release count the memory of a value. Nil does not count it.
	Reserve func(n int) bool
	Release func(n int)

	scanner scanner
}

// A ParseError says that bytes are not JSON. Nothing that follows them can be read.
type ParseError struct{ Cause error }

// Error implements error.
func (e *ParseError) Error() string { return "parse error: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *ParseError) Unwrap() error { return e.Cause }

// A TooLargeError says that a value was read and not kept, because it was larger than the limit or
// because there was no memory. The values behind it can be read.
type TooLargeError struct {
	// ID is the member "id" of the value, if it is an object that has it in the kept part or at its
	// end. Otherwise it is nil.
	ID []byte
	// Version1 says that these parts do not have the member "jsonrpc".
	Version1 bool
	// Size is the size of the value, in bytes.
	Size int
	// Memory says that Reserve has refused the memory.
	Memory bool
}

// Error implements error.
func (e *TooLargeError) Error() string {
	if e.Memory {
		return fmt.Sprintf("there is no memory for a message of %d bytes", e.Size)
	}
	return fmt.Sprintf("a message has %d bytes", e.Size)
}

// SkipSpace skips the spaces and newlines that have already arrived. It does not wait.
func (r *Reader) SkipSpace() {
	for r.Source.Buffered() > 0 {
		b, err := r.Source.Peek(r.Source.Buffered())
		if err != nil {
			return
		}
		n := len(b) - len(bytes.TrimLeft(b, " \t\r\n"))
		_, _ = r.Source.Discard(n) // they are buffered
		if n < len(b) {
			return
		}
	}
}

// Next reads a value. It returns io.EOF if the connection ends before the value begins. Errors of
// the syntax and of the limit are a *ParseError and a *TooLargeError. Any other error is that of
// Source. The value belongs to the caller. Its length was reserved, and the caller releases it.
func (r *Reader) Next() ([]byte, error) {
	r.scanner.reset()
	v := value{Reader: r}
	for {
		part, err := r.piece()
		if err != nil {
			v.drop()
			if errors.Is(err, io.EOF) && v.size > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if v.size == 0 {
			trimmed := bytes.TrimLeft(part, " \t\r\n")
			_, _ = r.Source.Discard(len(part) - len(trimmed)) // they are buffered
			if part = trimmed; len(part) == 0 {
				continue
			}
		}
		n, complete, err := r.scanner.scan(part)
		if err != nil {
			v.drop()
			return nil, &ParseError{err}
		}
		v.add(part[:n], complete)
		_, _ = r.Source.Discard(n) // they are buffered
		if complete {
			return v.finish()
		}
	}
}

// piece waits for bytes and returns those that have arrived, without removing them from Source.
func (r *Reader) piece() ([]byte, error) {
	if _, err := r.Source.Peek(1); err != nil {
		return nil, err
	}
	return r.Source.Peek(r.Source.Buffered())
}

// reset prepares the scanner for the next value.
func (s *scanner) reset() { s.state, s.depth, s.offset = atStart, 0, 0 }

// A value is a JSON value that is being read.
type value struct {
	*Reader
	b       []byte
	size    int
	skipped *TooLargeError // not nil if the rest is not kept
	last    [maxID + 64]byte
	lastLen int
}

// add appends a piece. Last says that it is the last one.
func (v *value) add(part []byte, last bool) {
	v.size += len(part)
	if v.skipped == nil {
		v.skipped = v.grow(len(part), last)
	}
	if v.skipped == nil {
		v.b = append(v.b, part...)
		return
	}
	if v.size == len(part) {
		v.skipped.lookInto(part)
	} else if v.b != nil {
		v.skipped.lookInto(v.b)
		v.lastLen = copy(v.last[:], v.b[max(0, len(v.b)-len(v.last)):])
		v.drop()
	}
	part = part[max(0, len(part)-len(v.last)):]
	keep := min(v.lastLen, len(v.last)-len(part))
	copy(v.last[:], v.last[v.lastLen-keep:v.lastLen])
	v.lastLen = keep + copy(v.last[keep:], part)
}

// grow makes room for n bytes.
func (v *value) grow(n int, last bool) *TooLargeError {
	need := len(v.b) + n
	switch {
	case need > v.Limit:
		return new(TooLargeError)
	case need <= cap(v.b):
		return nil
	case !last:
		need = min(2*need, v.Limit)
	}
	if !v.resize(need) {
		return &TooLargeError{Memory: true}
	}
	return nil
}

// resize moves the bytes to memory of another size, and reports whether there is memory.
func (v *value) resize(size int) bool {
	if v.Reserve != nil && !v.Reserve(size) {
		return false
	}
	b := append(make([]byte, 0, size), v.b...)
	v.drop()
	v.b = b
	return true
}

// drop frees the memory.
func (v *value) drop() {
	if v.Release != nil {
		v.Release(cap(v.b))
	}
	v.b = nil
}

// finish returns the complete value.
func (v *value) finish() ([]byte, error) {
	if v.skipped != nil {
		v.skipped.finish(v.size, v.last[:v.lastLen])
		return nil, v.skipped
	}
	if spare := cap(v.b) - len(v.b); spare > len(v.b)/4 {
		v.resize(len(v.b)) // without memory for it, the value keeps its spare room
	}
	if spare := cap(v.b) - len(v.b); spare > 0 && v.Release != nil {
		v.Release(spare)
	}
	return v.b, nil
}

// lookInto looks for the ID and the version in the first part of a value.
func (e *TooLargeError) lookInto(b []byte) {
	if b[0] != '{' {
		return
	}
	e.Version1 = true
	m := members{rest: b[1:]}
	for m.next() {
		switch string(m.key) {
		case `"id"`:
			if isID(m.value) {
				e.ID = bytes.Clone(m.value)
			}
		case `"jsonrpc"`:
			e.Version1 = false
		}
	}
}

// finish sets the size, and looks for the ID and the version in the last part of a value.
func (e *TooLargeError) finish(size int, last []byte) {
	e.Size = size
	if id := idOfEnd(last); id != nil {
		e.ID = id
	}
	if bytes.Contains(last, []byte(`"jsonrpc"`)) {
		e.Version1 = false
	}
}

// idOfEnd returns the member "id" if it is the last member of an object of which b is the end.
// Otherwise it returns nil. The object is valid, so a quotation mark that follows a comma begins a
// key.
func idOfEnd(b []byte) []byte {
	b = bytes.TrimSuffix(b, []byte("}"))
	at := bytes.LastIndex(b, []byte(`"id"`))
	if at <= 0 {
		return nil
	}
	before := bytes.TrimRight(b[:at], " \t\r\n")
	id, ok := bytes.CutPrefix(bytes.TrimLeft(b[at+len(`"id"`):], " \t\r\n"), []byte(":"))
	id = bytes.Trim(id, " \t\r\n")
	if !ok || !bytes.HasSuffix(before, []byte(",")) || !isID(id) || bytes.ContainsAny(id, `\}`) {
		return nil
	}
	return bytes.Clone(id)
}
