// SPDX-License-Identifier: Apache-2.0

// The peer raw is no framework but the ceiling: a program written for the benchmark alone that does
// the same job over TCP with as little as possible. Callers have a connection each and call in
// turns; asynchronous calls share one connection and are written and read many at a time. There are
// no deadlines, no limits, no names of methods, no errors, one message in the air per connection or
// all in order.
//
// A connection begins with a byte that says the work. A frame is a header of 8 bytes, the body's
// length and the call's number, and the body.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
)

func main() {
	peer.Main(peer.Peer{
		Name: "raw TCP", Module: "std", Setup: "no framework; vtprotobuf, a connection per caller or one with batches of up to 256 KiB",
		Works: []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream},
		Serve: serve, Dial: dial,
	})
}

const (
	header = 8
	small  = 16 << 10  // the first buffers of a connection
	batch  = 256 << 10 // what is read or written at once, at most
	large  = 32 << 10  // a larger body is echoed and compared as it comes, not when it is there
)

func appendHeader(dst []byte, size int, number uint32) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(size))
	return binary.LittleEndian.AppendUint32(dst, number)
}

func parseHeader(b []byte) (size int, number uint32) {
	return int(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:])
}

// A client is what all connections of one share.
type client struct {
	peer.Options
	data  []byte // of an echo, or of each message of a stream
	conns []net.Conn
	pipe  *pipe // for asynchronous calls
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	c := &client{Options: o, data: make([]byte, o.Size)}
	rand.Read(c.data)
	if size := header + 8 + o.Size; size > batch && (o.Async || o.Work == peer.Stream) {
		return nil, fmt.Errorf("messages of %d bytes are too large: %w", o.Size, errors.ErrUnsupported)
	}
	if o.Async && max(o.Conns, len(o.Addrs)) > 1 {
		return nil, fmt.Errorf("no asynchronous calls over more than one connection: %w", errors.ErrUnsupported)
	}
	if o.Conns != 0 && o.Conns != o.Callers && !o.Async {
		return nil, fmt.Errorf("%d connections for %d callers, who have one each: %w", o.Conns, o.Callers, errors.ErrUnsupported)
	}
	if o.Async {
		conn, err := c.connect()
		if err != nil {
			return nil, err
		}
		c.pipe = newPipe(c, conn)
	}
	return c, nil
}

// connect takes the servers in turn.
func (c *client) connect() (net.Conn, error) {
	conn, err := net.Dial("tcp", c.Addrs[len(c.conns)%len(c.Addrs)])
	if err != nil {
		return nil, err
	}
	c.conns = append(c.conns, conn)
	_, err = conn.Write([]byte{c.Work[0]})
	return conn, err
}

func (c *client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

func (c *client) Start(done func(error)) { c.pipe.start(done) }

// work returns what appends a call's request and what checks its reply.
func (c *client) work() (request func(dst []byte) []byte, check func(reply []byte) error) {
	switch c.Work {
	case peer.Message:
		out, in := message.New(), new(message.BenchmarkMessage)
		return func(dst []byte) []byte { return appendMessage(dst, out) }, func(reply []byte) error {
			in.Reset()
			if err := in.UnmarshalVT(reply); err != nil {
				return err
			}
			return message.Check(in)
		}
	case peer.Kiss:
		asked := peer.Asked()
		out := values{asked.Text, asked.Num, asked.I, asked.D}
		return out.appendTo, func(reply []byte) error {
			got, want := parseValues(reply), out.answer()
			if got != want {
				return fmt.Errorf("got %v, want %v", got, want)
			}
			return nil
		}
	}
	return func(dst []byte) []byte { return append(dst, c.data...) }, func(reply []byte) error {
		if !bytes.Equal(reply, c.data) {
			return errors.New("other bytes came back")
		}
		return nil
	}
}

func appendMessage(dst []byte, m *message.BenchmarkMessage) []byte {
	n, size := len(dst), m.SizeVT()
	dst = append(dst, make([]byte, size)...)
	if _, err := m.MarshalToSizedBufferVT(dst[n:]); err != nil {
		panic(err) // a field is missing
	}
	return dst
}

// Values are the arguments and the results of a kiss.
type values struct {
	s      string
	num, i int64
	d      float64
}

func (v values) answer() values {
	return values{v.s + ":server response" + strconv.FormatInt(v.i, 10), v.num, v.i + 1, v.d + 0.2}
}

func (v values) appendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(v.num))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(v.i))
	dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.d))
	return append(dst, v.s...)
}

func parseValues(b []byte) values {
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return values{string(b[24:]), int64(number(0)), int64(number(1)), math.Float64frombits(number(2))}
}
