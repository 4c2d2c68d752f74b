// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"

	"github.com/yodel-rpc/yodel/bench/message"
)

// A codec writes a header and a body, each with its length before it: the number of the call and
// the name of the method, or the error, as text; protobuf, or bytes as they are. It is the codec of
// a client or a server.
type codec struct {
	conn net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	buf  []byte // what is read
	send []byte
}

func newCodec(conn net.Conn) *codec {
	return &codec{conn: conn, in: bufio.NewReader(conn), out: bufio.NewWriter(conn)}
}

func (c *codec) Close() error { return c.conn.Close() }

func (c *codec) WriteRequest(r *rpc.Request, body any) error {
	return c.write(r.Seq, r.ServiceMethod, "", body)
}

func (c *codec) WriteResponse(r *rpc.Response, body any) error {
	if r.Error != "" {
		body = nil // of no type that is encoded
	}
	return c.write(r.Seq, r.ServiceMethod, r.Error, body)
}

func (c *codec) ReadRequestHeader(r *rpc.Request) (err error) {
	r.Seq, r.ServiceMethod, _, err = c.readHeader()
	return err
}

func (c *codec) ReadResponseHeader(r *rpc.Response) (err error) {
	r.Seq, r.ServiceMethod, r.Error, err = c.readHeader()
	return err
}

func (c *codec) ReadRequestBody(body any) error  { return c.readBody(body) }
func (c *codec) ReadResponseBody(body any) error { return c.readBody(body) }

func (c *codec) write(number uint64, method, problem string, body any) error {
	b := binary.AppendUvarint(c.send[:0], number)
	b = append(binary.AppendUvarint(b, uint64(len(method))), method...)
	b = append(binary.AppendUvarint(b, uint64(len(problem))), problem...)
	if reply, ok := body.(**message.BenchmarkMessage); ok {
		body = *reply
	}
	switch body := body.(type) {
	case *message.BenchmarkMessage:
		size := body.SizeVT()
		b = binary.AppendUvarint(b, uint64(size))
		begin := len(b)
		b = append(b, make([]byte, size)...)
		if _, err := body.MarshalToSizedBufferVT(b[begin:]); err != nil {
			return err
		}
	case *[]byte:
		b = append(binary.AppendUvarint(b, uint64(len(*body))), *body...)
	case nil:
		b = append(b, 0)
	default:
		return fmt.Errorf("%T is not encoded", body)
	}
	c.send = b
	if _, err := c.out.Write(b); err != nil {
		return err
	}
	return c.out.Flush()
}

func (c *codec) readHeader() (number uint64, method, problem string, err error) {
	if number, err = binary.ReadUvarint(c.in); err != nil {
		return 0, "", "", err
	}
	if err = c.read(); err != nil {
		return 0, "", "", err
	}
	method = string(c.buf)
	err = c.read()
	return number, method, string(c.buf), err
}

func (c *codec) readBody(body any) error {
	if err := c.read(); err != nil {
		return err
	}
	switch body := body.(type) {
	case *message.BenchmarkMessage:
		body.Reset() // it may be a reply that is used again
		return body.UnmarshalVT(c.buf)
	case *[]byte:
		*body = append((*body)[:0], c.buf...)
	case nil: // it is to be dropped
	default:
		return fmt.Errorf("%T is not decoded", body)
	}
	return nil
}

// read reads what has its length before it.
func (c *codec) read() error {
	size, err := binary.ReadUvarint(c.in)
	if err != nil {
		return err
	}
	if size > 1<<30 {
		return errors.New("it is too large")
	}
	if uint64(cap(c.buf)) < size {
		c.buf = make([]byte, size)
	}
	c.buf = c.buf[:size]
	_, err = io.ReadFull(c.in, c.buf)
	return err
}
