// SPDX-License-Identifier: Apache-2.0

// Package netrpc lets unchanged programs that use the standard library's net/rpc call a yodel
// server, on the port on which it serves yodel's own clients:
//
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Codecs:    []yodel.Codec{gob.Codec},
//		Protocols: []yodel.Protocol{netrpc.Protocol},
//	})
//
// Clients connect with rpc.Dial or rpc.DialHTTP. Their calls pass through the server's middleware
// and observers, keep to its limits, and are counted in its statistics. The protocol has no
// metadata and no deadlines: authorize by the address or the TLS certificate of the Peer, and bound
// the time of calls with middleware/timeout on the server.
//
// A client gets the text of a handler's error as it is, and other errors with their code and ID. It
// gets replies in any order. When its connection ends, the contexts of its calls end.
package netrpc

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"net/rpc"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// Protocol serves clients of net/rpc with its default encoding, gob. The server needs the codec
// "gob".
var Protocol yodel.Protocol = protocol{}

type protocol struct{}

func (protocol) Name() string { return "netrpc" }

const connect = "CONNECT " + rpc.DefaultRPCPath + " "

// Match implements yodel.Protocol. A connection begins with the HTTP request of rpc.DialHTTP, or
// with gob's definition of the type rpc.Request:
//
//	0x2e 0x7f 0x03 0x01 0x01 0x07 "Request"
//
// The first number is the length of the message, the second one is the ID of the type, which is
// negative and larger in a program that has used gob before.
func (protocol) Match(first []byte) (ok, more bool) {
	if n := min(len(first), len(connect)); string(first[:n]) == connect[:n] {
		return n == len(connect), true
	}
	const definition = "\x03\x01\x01\x07Request"
	rest := first
	for _, isID := range []bool{false, true} {
		_, n := uintOf(rest)
		switch {
		case n == 0:
			return false, len(rest) < maxUint
		case n < 0 || isID && rest[n-1]&1 == 0:
			return false, false
		}
		rest = rest[n:]
	}
	n := min(len(rest), len(definition))
	same := string(rest[:n]) == definition[:n]
	return same && n == len(definition), same
}

// maxUint is how many bytes a number has in a gob at most.
const maxUint = 9

// uintOf reads a number as gob encodes it: one byte below 128, or the negated count of the bytes
// that follow, the highest first. It returns how many bytes that took, 0 if there are too few, and
// -1 if it is no number.
func uintOf(b []byte) (x uint64, n int) {
	if len(b) == 0 {
		return 0, 0
	}
	if b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	size := -int(int8(b[0])) //nolint:gosec // it is meant
	if size > maxUint-1 {
		return 0, -1
	}
	if len(b) <= size {
		return 0, 0
	}
	for _, c := range b[1 : 1+size] {
		x = x<<8 | uint64(c)
	}
	return x, 1 + size
}

// Serve implements yodel.Protocol.
func (protocol) Serve(_ context.Context, s *yodel.Session) error {
	codec := s.Codec("gob")
	if codec == nil {
		return errors.New(`net/rpc needs the codec "gob" in ServerOptions.Codecs`)
	}
	if err := acceptHTTP(s); err != nil {
		return err
	}
	c := &conn{session: s, codec: codec, limits: s.Limits()}
	c.headers = gob.NewDecoder(&c.fed)
	c.types.reserve = s.Reserve
	c.writer.session, c.writer.limits = s, c.limits
	c.writer.encoder = gob.NewEncoder(&c.writer.encoded)
	for {
		if err := c.next(); err != nil {
			return err
		}
	}
}

// acceptHTTP answers the request of rpc.DialHTTP, if the connection begins with one.
func acceptHTTP(s *yodel.Session) error {
	if err := s.Next(); err != nil {
		return err
	}
	if first, err := s.Reader.Peek(1); err != nil || first[0] != connect[0] {
		return err
	}
	const most = 8 << 10
	for n := 0; n < most; {
		line, err := s.Reader.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("read the CONNECT request: %w", err)
		}
		if n += len(line); len(bytes.TrimRight(line, "\r\n")) == 0 {
			_, err = io.WriteString(s, "HTTP/1.0 200 Connected to Go RPC\n\n")
			return err
		}
	}
	return fmt.Errorf("the CONNECT request has more than %d bytes", most)
}

// A conn is the reading side of a connection.
type conn struct {
	session *yodel.Session
	codec   yodel.Codec
	limits  yodel.Limits

	headers *gob.Decoder // reads fed
	fed     bytes.Buffer
	types   typeTable

	headerTypes int // how many types the headers have had

	writer writer
}

// next reads one request and begins it.
func (c *conn) next() error {
	if err := c.session.Next(); err != nil {
		return err
	}
	header, err := c.header()
	if err != nil {
		return err
	}
	size, id, err := c.toValue()
	if err != nil {
		return unexpected(err)
	}
	definitions, open, err := c.types.needs(id)
	if err != nil {
		return err
	}
	n := len(definitions)
	if open { // it is known only when the value has been read
		n = maxNeeded
	}
	v := c.session.Begin(header.ServiceMethod, c.codec, nil)
	if e := v.Admit(n+size, true); e != nil {
		defer v.End()
		c.writer.reply(header, v, e)
		if open {
			return fmt.Errorf("a request with interfaces was refused, and the definitions in it are lost: %w", e)
		}
		_, err = io.CopyN(io.Discard, c.session.Reader, int64(size))
		return unexpected(err)
	}
	if open {
		v.Body, err = c.openBody(size)
	} else {
		v.Body = make([]byte, n+size)
		_, err = io.ReadFull(c.session.Reader, v.Body[copy(v.Body, definitions):])
	}
	if err != nil {
		v.End()
		return unexpected(err)
	}
	v.Owned = true
	c.session.Go(func() {
		defer v.End()
		defer func() { c.writer.reply(header, v, v.Outcome()) }() // also when the handler ends the goroutine
		_ = v.Run()                                               // it is the outcome
	})
	return nil
}

// header reads the header of a request.
func (c *conn) header() (*rpc.Request, error) {
	size, id, err := c.toValue()
	if err != nil {
		return nil, err
	}
	if size > c.limits.MaxMetadata {
		return nil, fmt.Errorf("a request's header has %d bytes, the limit is %d", size, c.limits.MaxMetadata)
	}
	definitions, open, err := c.types.needs(id)
	if err != nil {
		return nil, err
	}
	if open {
		return nil, errors.New("a request's header has an interface in it")
	}
	if t := c.types.find(id); !t.sent {
		if c.headerTypes++; c.headerTypes > 1 {
			return nil, errors.New("the headers of requests have several types")
		}
		t.sent = true
		c.fed.Write(definitions)
	}
	if _, err = io.CopyN(&c.fed, c.session.Reader, int64(size)); err != nil {
		return nil, unexpected(err)
	}
	header := new(rpc.Request)
	if err = c.headers.Decode(header); err != nil {
		return nil, fmt.Errorf("decode a request's header: %w", err)
	}
	return header, nil
}

// openBody reads a value with interfaces in it, whose first message has size bytes, and returns it
// with the definitions that it needs.
func (c *conn) openBody(size int) ([]byte, error) {
	value := make([]byte, size)
	if _, err := io.ReadFull(c.session.Reader, value); err != nil {
		return nil, err
	}
	reserved := 0
	defer func() { c.session.Release(reserved) }()
	_, start := uintOf(value)
	definitions, err := c.types.complete(value[start:], func() ([]byte, error) {
		n, start, err := c.peekMessage()
		if err != nil {
			return nil, err
		}
		if len(value)+n > c.limits.MaxMessage {
			return nil, fmt.Errorf("a request has more than %d bytes", c.limits.MaxMessage)
		}
		if !c.session.Reserve(n) {
			return nil, errMemory
		}
		reserved += n
		at := len(value)
		value = slices.Grow(value, n)[:at+n]
		_, err = io.ReadFull(c.session.Reader, value[at:])
		return value[at+start:], err
	})
	return append(definitions, value...), err
}

// toValue reads to the next message that is a value, and keeps the definitions of types before it.
// It returns the size of that message with its length, and the number of its type.
func (c *conn) toValue() (size int, id int64, err error) {
	for {
		size, start, err := c.peekMessage()
		if err != nil {
			return 0, 0, err
		}
		number, n, err := c.peekUint(start)
		if err != nil {
			return 0, 0, unexpected(err)
		}
		if start+n > size {
			return 0, 0, errDamaged
		}
		if number&1 == 0 { // that of a definition is negative
			return size, int64(number >> 1), nil
		}
		if size > maxDefinitions {
			return 0, 0, fmt.Errorf("the definition of a type has %d bytes, the limit is %d", size, maxDefinitions)
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(c.session.Reader, message); err != nil {
			return 0, 0, unexpected(err)
		}
		definition := &cursor{rest: message[start+n:]}
		if _, err = c.types.define(^int64(number>>1), definition); err != nil {
			return 0, 0, err
		}
		if len(definition.rest) > 0 {
			return 0, 0, errDamaged
		}
	}
}

// peekMessage returns the size of the next message with its length, and where its content starts.
func (c *conn) peekMessage() (size, start int, err error) {
	length, start, err := c.peekUint(0)
	if err != nil {
		return 0, 0, err
	}
	if length == 0 || length > math.MaxInt32 {
		return 0, 0, fmt.Errorf("a message has %d bytes", length)
	}
	return start + int(length), start, nil
}

// peekUint returns the number that begins at an offset, and how many bytes it takes, without
// reading on.
func (c *conn) peekUint(at int) (x uint64, size int, err error) {
	for n := 1; ; n++ {
		b, err := c.session.Reader.Peek(at + n)
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
			return 0, 0, errors.New("it is no gob")
		}
	}
}

// unexpected is err, where the connection should not have ended.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// textOf is what a client gets of an error: a handler's own text, or what net/rpc says of a method
// that does not exist, or else the code, the text and the ID.
func textOf(method string, e *yodel.Error) string {
	switch {
	case e.Code == yodel.Unknown:
		return strings.TrimSpace(e.Message)
	case e.Code == yodel.Unimplemented && e.NotProcessed:
		return "rpc: can't find service " + method
	}
	return e.Error()
}
