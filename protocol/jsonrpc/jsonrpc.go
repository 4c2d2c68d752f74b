// SPDX-License-Identifier: Apache-2.0

// Package jsonrpc serves clients of JSON-RPC 2.0 and 1.0, and calls their servers. The messages
// travel over TCP or any other stream, one after the other:
//
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Protocols: []yodel.Protocol{jsonrpc.Protocol},
//	})
//
// On the same port, the server serves yodel's own clients. Programs that use the standard library's
// net/rpc/jsonrpc, which speaks version 1.0, can call it unchanged. Their calls pass through the
// server's middleware and observers. The server's limits and statistics include them. Messages are
// in the codec "json" of the server.
//
// # Parameters and results
//
// A method with several values takes an array with one element for each value. A method with one
// argument takes an object, which is the argument, or an array with one element. A method without
// arguments takes no parameters, [] or {}. A method of Server.HandleCall gets the parameters as
// they came, or an empty body.
//
// If the argument is itself an array, [1,2,3] and [[1,2,3]] mean the same: an array with exactly
// one element that is an array or null is unwrapped. In version 1.0, any array with one element is
// unwrapped. To pass an array in any case, wrap it.
//
// The only result of a method is the result of the reply. Several results are an array, and no
// result is null.
//
// # Requests
//
// A request without an ID is a notification: it is executed, and nothing is written. In version
// 1.0, its ID is null. The server echoes IDs unchanged. An ID is a string or an integer of at most
// 1 KiB. Replies arrive in any order. The requests of a batch are executed concurrently. A batch
// has at most Limits.MaxOpen requests. When the connection of a client ends, the contexts of its
// calls end, also those of notifications.
//
// A request that is not valid gets the error -32600, with its ID if that is valid. After bytes that
// are not JSON, the server sends the error -32700 and closes the connection. It also closes the
// connection after a message over the limits whose ID it cannot find.
//
// # Errors
//
// The code of an error is -32000 minus the number of its yodel.Code, with four exceptions: -32601
// for a method that does not exist or is a stream, -32602 for parameters that do not fit, -32603
// for yodel.Internal, and -32600 as above. If an error has an ID, details or a time to retry after,
// or if the call was certainly not executed, the member "data" says so:
//
//	{"code":"unavailable","id":"YDL3004","details":[{"type":"t","value":"base64"}],"retryAfterMs":100,"notProcessed":true}
//
// In version 1.0, an error is a text: that of the handler's error, or the code, the text and the
// ID.
//
// # What the protocol does not carry
//
// Metadata, headers, trailers, deadlines, keys, trace contexts, cancellation, compression and
// streams. Authorize by the address or the TLS certificate of the Peer, and bound the time of calls
// with middleware/timeout on the server. The header and the trailer that a handler sets are not
// sent. A reply with an attachment fails.
package jsonrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel"
	core "github.com/yodel-rpc/yodel/protocol/internal/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// Protocol serves clients of JSON-RPC 2.0 and 1.0.
var Protocol yodel.Protocol = protocol{}

type protocol struct{}

// Name implements yodel.Protocol.
func (protocol) Name() string { return "jsonrpc" }

// Match implements yodel.Protocol. A connection begins with an object, or with an array that begins
// with an object, a space, or its end. Spaces may come before it. Thrift's JSON begins with [1,"
// and does not match.
func (protocol) Match(first []byte) (ok, more bool) {
	rest := bytes.TrimLeft(first, " \t\r\n")
	switch {
	case len(rest) == 0:
		return false, true
	case rest[0] == '{':
		return true, false
	case rest[0] != '[':
		return false, false
	case len(rest) == 1:
		return false, true
	}
	return strings.IndexByte("{] \t\r\n", rest[1]) >= 0, false
}

// Serve implements yodel.Protocol.
func (protocol) Serve(ctx context.Context, s *yodel.Session) error {
	limits := s.Limits()
	c := &conn{
		session: s,
		server:  core.Server{Session: s, Wait: true, Version1: true, Ran: leaveOut},
		reader:  core.Reader{Source: s.Reader, Limit: limits.MaxMessage + limits.MaxMetadata, Reserve: s.Reserve, Release: s.Release},
		replies: pipelined.NewReplies(s),
	}
	for {
		if err := c.next(); err != nil { //nolint:contextcheck // the context of a call is that of its session
			return err
		}
	}
}

// leaveOut leaves out the metadata of a reply.
func leaveOut(v *yodel.Served) { metakeys.LeaveOut(v, "JSON-RPC has no metadata") }

// A conn is the reading side of a connection.
type conn struct {
	session *yodel.Session
	server  core.Server
	reader  core.Reader
	replies *pipelined.Replies
}

// next reads one message and starts its execution.
func (c *conn) next() error {
	if err := c.begin(); err != nil {
		return err
	}
	message, err := c.reader.Next()
	if err != nil {
		return c.fault(err)
	}
	n := len(message)
	c.server.Start(context.Background(), message, c.send) // the session ends the calls
	c.session.Release(n)                                  // the admitted calls count it
	return nil
}

// begin waits for the first byte of a message. Spaces between messages are not a message, so that a
// newline behind the last request does not delay a shutdown.
func (c *conn) begin() error {
	for {
		c.reader.SkipSpace()
		if err := c.session.Next(); err != nil {
			return err
		}
		if c.reader.SkipSpace(); c.session.Reader.Buffered() > 0 {
			return nil
		}
	}
}

// send writes a reply and a newline, unless the reply is empty.
func (c *conn) send(parts ...[]byte) {
	if last := len(parts) - 1; last >= 0 {
		parts[last] = append(parts[last], '\n')
		c.replies.Send(parts...)
	}
}

// fault answers a message that could not be read. It returns the error that ends the connection, or
// nil.
func (c *conn) fault(err error) error {
	large, isLarge := errors.AsType[*core.TooLargeError](err)
	if _, isSyntax := errors.AsType[*core.ParseError](err); !isLarge && !isSyntax {
		return err
	}
	if isLarge && large.ID != nil {
		c.send(core.Fault(err))
		return nil
	}
	_, _ = c.session.Write(append(core.Fault(err), '\n')) // not by replies, because the connection ends when this returns
	return fmt.Errorf("JSON-RPC: %w", err)
}
