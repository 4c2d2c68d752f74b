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
// and observers. The server's limits and statistics include them. The protocol has no metadata and
// no deadlines: authorize by the address or the TLS certificate of the Peer, and bound the time of
// calls with middleware/timeout on the server.
//
// For a handler's error, a client gets the unchanged text. For any other error, it gets the text
// with the code and the ID. Replies arrive in any order. When the connection of a client ends, the
// contexts of its calls end.
package netrpc

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net/rpc"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/gobwire"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/httpconnect"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// Protocol serves clients of net/rpc with its default encoding, gob. The server needs the codec
// "gob".
var Protocol yodel.Protocol = protocol{}

type protocol struct{}

func (protocol) Name() string { return "netrpc" }

// Codecs names the codec that the protocol needs: see yodel.Protocol.
func (protocol) Codecs() []string { return []string{"gob"} }

const connect = "CONNECT " + rpc.DefaultRPCPath + " "

// Match implements yodel.Protocol. A connection begins with the HTTP request of rpc.DialHTTP, or
// with gob's definition of the type rpc.Request:
//
//	0x2e 0x7f 0x03 0x01 0x01 0x07 "Request"
//
// The first number is the length of the message. The second is the ID of the type. It is negative,
// and larger in a program that has used gob before.
func (protocol) Match(first []byte) (ok, more bool) {
	if n := min(len(first), len(connect)); string(first[:n]) == connect[:n] {
		return n == len(connect), true
	}
	const definition = "\x03\x01\x01\x07Request"
	rest := first
	for _, isID := range []bool{false, true} {
		_, n := gobwire.Uint(rest)
		switch {
		case n == 0:
			return false, len(rest) < gobwire.MaxUint
		case n < 0 || isID && rest[n-1]&1 == 0:
			return false, false
		}
		rest = rest[n:]
	}
	n := min(len(rest), len(definition))
	same := string(rest[:n]) == definition[:n]
	return same && n == len(definition), same
}

// Serve implements yodel.Protocol.
func (protocol) Serve(_ context.Context, s *yodel.Session) error {
	codec := s.Codec("gob")
	if codec == nil {
		return errors.New(`net/rpc needs the codec "gob" in ServerOptions.Codecs`)
	}
	if err := httpconnect.Accept(s, func(first byte) bool { return first == connect[0] }, "Connected to Go RPC"); err != nil {
		return err
	}
	c := &conn{session: s, codec: codec, limits: s.Limits(), frames: newFrames(s.Reader, s.Limits().MaxMessage)}
	c.frames.types.reserve, c.frames.release = s.Reserve, s.Release
	c.writer.Replies, c.writer.limits = pipelined.NewReplies(s), c.limits
	c.writer.encoder = gob.NewEncoder(&c.writer.encoded)
	return s.Loop(c.next, c.writer.Flush)
}

// A conn is the reading side of a connection.
type conn struct {
	session *yodel.Session
	codec   yodel.Codec
	limits  yodel.Limits
	frames  *frames
	writer  writer
}

// next reads one request and starts its execution.
func (c *conn) next() error {
	header := new(rpc.Request)
	if err := c.frames.header(header, c.limits.MaxMetadata); err != nil {
		return err
	}
	value, err := c.frames.next()
	if err != nil {
		return framebody.Unexpected(err)
	}
	v := c.session.Begin(header.ServiceMethod, c.codec, nil)
	if e, err := c.receive(v, value); e != nil {
		defer v.End()
		c.writer.reply(header, v, e)
		return err
	} else if err != nil {
		v.End()
		return framebody.Unexpected(err)
	}
	v.Owned = true
	v.Go(func() {
		defer v.Free()
		defer func() { c.writer.reply(header, v, v.Outcome()) }() // deferred, because the handler may end the goroutine
		_ = v.Run()                                               // v.Outcome returns the error
	})
	return nil
}

// receive reads the request of a call and admits the call. If the call is refused, receive returns
// why, and skips the request. The size of a value with interfaces is known when it has been read.
func (c *conn) receive(v *yodel.Served, value value) (refusal *yodel.Error, err error) {
	if !value.open {
		var skip int
		v.Body, skip, refusal, err = framebody.Receive(v, c.session, value.definitions, c.frames.reader, value.size)
		if refusal != nil {
			err = framebody.Skip(c.frames.reader, skip)
		}
		return refusal, err
	}
	if refusal = v.Admit(value.cost(), true); refusal != nil {
		return refusal, c.skip(value, refusal)
	}
	v.Body, err = c.frames.body(value)
	return nil, err
}

// skip discards a value that was refused because of e. To discard one with interfaces, the server
// has to read it, because the definitions of types in it may be needed later. If it is too large
// for that, skip returns an error, which ends the connection.
func (c *conn) skip(v value, e *yodel.Error) error {
	if v.open {
		if v.cost() > c.limits.MaxMessage || !c.session.Reserve(v.size) {
			c.writer.Drain() // then the client has the refusal
			return fmt.Errorf("a request with interfaces was refused, and the definitions in it are lost: %w", e)
		}
		defer c.session.Release(v.size)
	}
	return c.frames.skip(v)
}
