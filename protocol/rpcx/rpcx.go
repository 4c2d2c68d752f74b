// SPDX-License-Identifier: Apache-2.0

// Package rpcx lets unchanged programs that use rpcx call a yodel server, on the port on which it
// serves yodel's own clients, and lets a yodel client call servers of rpcx:
//
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Codecs:      []yodel.Codec{msgpack.Codec, protobuf.Codec},
//		Compressors: []compress.Compressor{gzip.Compressor},
//		Protocols:   []yodel.Protocol{rpcx.Protocol},
//	})
//
//	client := yodel.NewClient(discovery.Static("rpcx://10.0.0.7:8972", "10.0.0.8:8972"), &yodel.ClientOptions{
//		Wires: []yodel.Wire{rpcx.Wire(msgpack.Codec)},
//	})
//
// # Names
//
// The service path and the service method of rpcx form the name of the method: Arith and Mul are
// "Arith.Mul", or "Arith/Mul" if the server has a method of that name. The serialize types stand
// for the codecs with these names: 0 raw, 1 json, 2 protobuf, 3 msgpack, 4 thrift. The compress
// type 1 stands for the compressor gzip. Options has names for further types.
//
// # Metadata
//
// Metadata travels in both directions, with two exceptions: rpcx's key __AUTH is "authorization" in
// yodel, and the time that is left until the deadline, in __ServerTimeout, is the deadline of the
// call. A reply has one kind of metadata, which has the header and the trailer of the call. The
// other fields of a call travel as idempotency-key, traceparent and tracestate, which a client may
// write in any case, and as yodel-tenant, yodel-key, yodel-criticality, yodel-budget, yodel-attempt
// and yodel-explain. Programs that do not use yodel can set all of these. Keys that have a meaning
// in rpcx are reserved, and so are all keys that begin with "yodel-" except those of middleware in
// this repository, such as "yodel-fallback". A call of a yodel client that has a reserved key in
// its Metadata fails before it is sent. A reply is sent without it: see yodel.Served.LeftOut. A
// request may have any key: the server takes a key that it does not know as metadata.
//
// # Errors
//
// For a handler's error without a code, a client gets the unchanged text. For any other error, it
// gets the text with the code and the ID. The metadata of the answer has the code, the ID,
// RetryAfter and NotProcessed for clients that use yodel. If the method had a reply when it failed,
// the reply is sent beside the error. Details of errors do not travel. An error with the code
// Unauthenticated ends the connection after the replies to the other calls, as in rpcx.
//
// # Messages from the server
//
// A server sends a message to a client by a one-way call of its Peer. A program with rpcx receives
// it from the channel of client.NewBidirectionalXClient or RegisterServerMessageChan, and a program
// with yodel by WireOptions.Push. The message is encoded with the codec of the call:
//
//	peer := yodel.CallFrom(ctx).Peer() // of a handler, or one of Server.Peers
//	err := peer.Do(ctx, &yodel.Call{Method: "topic.Event", Args: &payload, Codec: raw.Codec, OneWay: true})
//
// Server.Peers has a client once its first call has begun. A client that does not receive messages
// drops them, and the server does not learn that. Other calls of a Peer fail.
//
// # What rpcx does not have
//
// Streams of methods, several values and attachments do not travel: such calls fail before they are
// sent. Calls are not ordered. A client cannot cancel a call.
//
// # Files and streams
//
// Rpcx transfers files, and has streams of bytes, over further connections. Transfers serves them,
// and SendFile, DownloadFile and OpenStream are their clients.
package rpcx

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpconnect"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// Protocol serves clients of rpcx with the default Options.
var Protocol = With(nil)

// Options are the options of a Protocol. The zero value is ready for use.
type Options struct {
	// Codecs has the names of the codecs for serialize types, in addition to the types 0 to 4 or in
	// place of them. The largest type is 15.
	Codecs map[byte]string
	// Path is the path of the HTTP request CONNECT with which a client may begin its connection.
	// Default "/_rpcx_".
	Path string
}

const defaultPath = "/_rpcx_"

// With returns a Protocol that serves clients of rpcx. Its name is "rpcx". With panics if a
// serialize type is larger than 15. O may be nil, and is copied.
func With(o *Options) yodel.Protocol {
	if o == nil {
		o = new(Options)
	}
	p := &protocol{codecs: rpcxwire.Codecs(), types: make(map[string]byte), connect: "CONNECT " + cmp.Or(o.Path, defaultPath) + " "}
	for n := range o.Codecs {
		if n > 15 {
			panic(fmt.Sprintf("rpcx: there is no serialize type %d", n))
		}
	}
	maps.Copy(p.codecs, o.Codecs)
	for n, name := range p.codecs {
		if other, known := p.types[name]; !known || n < other {
			p.types[name] = n
		}
	}
	return p
}

type protocol struct {
	codecs  map[byte]string
	types   map[string]byte // the serialize types by the names of codecs
	connect string          // the beginning of the HTTP request
}

// Name implements yodel.Protocol.
func (*protocol) Name() string { return "rpcx" }

// Codecs returns the names of the codecs that serialize types have: see yodel.Protocol.
func (p *protocol) Codecs() []string { return slices.Sorted(maps.Keys(p.types)) }

// Match implements yodel.Protocol. A connection begins with a request, whose first byte is 0x08 and
// whose third byte is less than 0x80, or with an HTTP request.
func (p *protocol) Match(first []byte) (ok, more bool) {
	if len(first) == 0 {
		return false, true
	}
	if first[0] == magic {
		return len(first) > 2 && first[2]&response == 0, len(first) < 3
	}
	n := min(len(first), len(p.connect))
	same := string(first[:n]) == p.connect[:n]
	whole := n == len(p.connect)
	return same && whole, same && !whole
}

// Serve implements yodel.Protocol.
func (p *protocol) Serve(_ context.Context, s *yodel.Session) error {
	if err := httpconnect.Accept(s, func(first byte) bool { return first != magic }, "Connected to rpcx"); err != nil {
		return err
	}
	limits := s.Limits()
	c := &conn{
		session: s, protocol: p, limits: limits, replies: pipelined.NewReplies(s),
		frames: frameReader{Reader: s.Reader, maxMetadata: limits.MaxMetadata, maxPairs: limits.MaxPairs},
	}
	push := &pusher{session: s, protocol: p, replies: c.replies}
	defer push.end()
	defer s.Conn.Close() // for push, which may be writing
	s.Push(push)
	err := s.Loop(c.next, c.replies.Flush)
	if c.closing() {
		return nil
	}
	return err
}
