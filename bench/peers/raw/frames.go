// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
)

// Frames are read from a connection, as many at a time as have come.
type frames struct {
	conn       net.Conn
	buf        []byte // of which from begin to end is unread
	begin, end int
}

// next returns a frame that has come whole. The body is valid until read.
func (f *frames) next() (number uint32, body []byte, ok bool) {
	unread := f.buf[f.begin:f.end]
	if len(unread) < header {
		return 0, nil, false
	}
	size, number := parseHeader(unread)
	if len(unread) < header+size {
		return 0, nil, false
	}
	f.begin += header + size
	return number, unread[header : header+size], true
}

// part returns the header and what has come of the body of a large frame, and how much is missing.
func (f *frames) part() (part []byte, missing int, ok bool) {
	unread := f.buf[f.begin:f.end]
	if len(unread) < header {
		return nil, 0, false
	}
	size, _ := parseHeader(unread)
	if missing = header + size - len(unread); header+size <= large || missing <= 0 {
		return nil, 0, false
	}
	f.begin = f.end
	return unread, missing, true
}

// read waits for more. The buffer grows when it was filled.
func (f *frames) read() error {
	if f.end == len(f.buf) && len(f.buf) < batch {
		f.buf = append(make([]byte, 0, max(small, 4*len(f.buf))), f.buf...)
		f.buf = f.buf[:cap(f.buf)]
	}
	f.end = copy(f.buf, f.buf[f.begin:f.end])
	f.begin = 0
	n, err := f.conn.Read(f.buf[f.end:])
	f.end += n
	if n > 0 {
		return nil
	}
	return err
}

// through hands the next n bytes to take, a buffer full at a time.
func (f *frames) through(n int, take func([]byte) error) error {
	if len(f.buf) < batch {
		f.buf = make([]byte, batch) // all that was in it has been taken
		f.begin, f.end = 0, 0
	}
	for n > 0 {
		got, err := f.conn.Read(f.buf[:min(n, len(f.buf))])
		if got == 0 && err != nil {
			return io.ErrUnexpectedEOF
		}
		if err := take(f.buf[:got]); err != nil {
			return err
		}
		n -= got
	}
	return nil
}
