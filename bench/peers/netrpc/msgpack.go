// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"net/rpc"

	"github.com/vmihailenco/msgpack/v5"
)

// A msgpackCodec is what packages for net/rpc with msgpack do: header and body follow each other,
// and leave in one write.
type msgpackCodec struct {
	io.Closer
	dec *msgpack.Decoder
	enc *msgpack.Encoder
	out *bufio.Writer
}

func newMsgpackCodec(conn io.ReadWriteCloser) *msgpackCodec {
	out := bufio.NewWriter(conn)
	return &msgpackCodec{conn, msgpack.NewDecoder(bufio.NewReader(conn)), msgpack.NewEncoder(out), out}
}

func (c *msgpackCodec) write(header, body any) error {
	if err := c.enc.EncodeMulti(header, body); err != nil {
		return err
	}
	return c.out.Flush()
}

func (c *msgpackCodec) readBody(into any) error {
	if into == nil {
		return c.dec.Skip()
	}
	return c.dec.Decode(into)
}

func (c *msgpackCodec) WriteRequest(r *rpc.Request, body any) error   { return c.write(r, body) }
func (c *msgpackCodec) ReadRequestHeader(r *rpc.Request) error        { return c.dec.Decode(r) }
func (c *msgpackCodec) ReadRequestBody(into any) error                { return c.readBody(into) }
func (c *msgpackCodec) WriteResponse(r *rpc.Response, body any) error { return c.write(r, body) }
func (c *msgpackCodec) ReadResponseHeader(r *rpc.Response) error      { return c.dec.Decode(r) }
func (c *msgpackCodec) ReadResponseBody(into any) error               { return c.readBody(into) }
