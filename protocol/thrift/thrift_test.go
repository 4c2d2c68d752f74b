// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/conformance/refusing"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var codecs = []yodel.Codec{codec.Codec, codec.Compact} // by thriftwire.Format

// A dialect is a way to send messages.
type dialect struct {
	format thriftwire.Format
	old    bool // the binary protocol without a version
	framed bool
}

func (d dialect) String() string {
	return fmt.Sprintf("%v, old %t, framed %t", d.format, d.old, d.framed)
}

var dialects = []dialect{{}, {old: true}, {framed: true}, {old: true, framed: true}, {format: thriftwire.Compact}, {format: thriftwire.Compact, framed: true}}

// message returns a message with the fields of a struct, each encoded so that it stands alone.
func (d dialect) message(h thriftwire.Header, fields ...[]byte) []byte {
	h.Format, h.NotStrict = d.format, d.old
	b := thriftwire.AppendHeader(nil, &h)
	for i, f := range fields {
		if f != nil {
			b, _ = thriftwire.AppendFieldOf(b, d.format, f, int16(i+1), int16(i))
		}
	}
	return d.frame(append(b, 0))
}

func (d dialect) frame(b []byte) []byte {
	if d.framed {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	}
	return b
}

// call returns the message of a call.
func (d dialect) call(seq int32, name string, args ...any) []byte {
	return d.message(thriftwire.Header{Type: thriftwire.Call, Seq: seq, Name: name}, d.encode(args...)...)
}

func (d dialect) encode(args ...any) [][]byte {
	fields := make([][]byte, len(args))
	for i, arg := range args {
		fields[i], _ = codecs[d.format].Append(nil, arg)
	}
	return fields
}

// A result is a reply.
type result struct {
	thriftwire.Header
	fields map[int16][]byte // each encoded so that it stands alone
}

// read reads a reply.
func (d dialect) read(from *bufio.Reader) (*result, error) {
	var r thriftwire.Reader
	if d.framed {
		length := make([]byte, 4)
		if _, err := io.ReadFull(from, length); err != nil {
			return nil, err
		}
		r.Bytes = make([]byte, binary.BigEndian.Uint32(length))
		if _, err := io.ReadFull(from, r.Bytes); err != nil {
			return nil, err
		}
	} else {
		(&thriftwire.Source{From: from, Limit: 1 << 30}).Attach(&r)
	}
	h, err := r.Header(4 << 10)
	if err != nil {
		return nil, err
	}
	r.Format = d.format
	at := r.At
	if err = r.Skip(thriftwire.Struct, 0); err != nil {
		return nil, err
	}
	res := &result{Header: h, fields: make(map[int16][]byte)}
	r.At = at
	return res, r.Fields(func(id int16, _ thriftwire.Type, encoded []byte) error {
		res.fields[id] = bytes.Clone(encoded)
		return nil
	})
}

// exception returns the text and the number of a TApplicationException.
func (d dialect) exception(r *result) (text string, number int32) {
	_ = codecs[d.format].Decode(r.fields[1], &text)
	_ = codecs[d.format].Decode(r.fields[2], &number)
	return text, number
}

// A client calls with one argument over a connection.
type client struct {
	dialect
	mu      sync.Mutex
	conn    net.Conn
	replies *bufio.Reader
	seq     int32
}

// Do implements yodel.Caller.
func (c *client) Do(_ context.Context, call *yodel.Call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	name := strings.Replace(call.Method, ".", ":", 1)
	if _, err := c.conn.Write(c.call(c.seq, name, call.Args)); err != nil {
		return err
	}
	r, err := c.read(c.replies)
	if err != nil {
		return err
	}
	_, method, _ := strings.Cut(name, ":")
	if r.Seq != c.seq || r.Name != method || r.Format != c.format || r.NotStrict != c.old {
		return fmt.Errorf("the reply has the wrong header %+v", r.Header)
	}
	if r.Type == thriftwire.Exception {
		text, _ := c.exception(r)
		return errors.New(text)
	}
	return codecs[c.format].Decode(r.fields[0], call.Reply)
}

func TestProtocol(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.String(), func(t *testing.T) {
			p := yodeltest.Protocol{Protocol: thrift.Protocol, Codecs: codecs, OneAtATime: true, Middleware: refusing.All}
			yodeltest.TestProtocol(t, p, func(conn net.Conn) yodel.Caller {
				return &client{dialect: d, conn: conn, replies: bufio.NewReader(conn)}
			})
		})
	}
}
