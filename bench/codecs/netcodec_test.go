// SPDX-License-Identifier: Apache-2.0

package codecs_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/rpc"

	"github.com/yodel-rpc/yodel"
)

// A netCodec is what net/rpc reads and writes with when it is neither gob nor JSON. A message is
// its number, the name of the method, the error and the body, the last three with their lengths
// before them. One goroutine reads; net/rpc writes under a lock.
type netCodec struct {
	conn  net.Conn
	r     *bufio.Reader
	codec yodel.Codec
	body  []byte // of the message being read; its memory is used again
	out   []byte // likewise, of the one being written
	value []byte // what its body was encoded to
}

func newNetCodec(conn net.Conn, codec yodel.Codec) *netCodec {
	return &netCodec{conn: conn, r: bufio.NewReader(conn), codec: codec}
}

const maxBody = 1 << 20

var errTooLong = errors.New("the message is too long")

func (c *netCodec) write(seq uint64, method, failed string, body any) error {
	var err error
	c.value = c.value[:0]
	if body != nil {
		if c.value, err = c.codec.Append(c.value, body); err != nil {
			return err
		}
	}
	c.out = binary.AppendUvarint(c.out[:0], seq)
	for _, text := range []string{method, failed} {
		c.out = append(binary.AppendUvarint(c.out, uint64(len(text))), text...)
	}
	c.out = append(binary.AppendUvarint(c.out, uint64(len(c.value))), c.value...)
	_, err = c.conn.Write(c.out)
	return err
}

func (c *netCodec) readHeader() (seq uint64, method, failed string, err error) {
	if seq, err = binary.ReadUvarint(c.r); err != nil {
		return 0, "", "", err
	}
	for _, text := range []*string{&method, &failed} {
		if err := c.readBytes(); err != nil {
			return 0, "", "", err
		}
		*text = string(c.body)
	}
	return seq, method, failed, c.readBytes()
}

func (c *netCodec) readBytes() error {
	n, err := binary.ReadUvarint(c.r)
	if err != nil {
		return err
	}
	if n > maxBody {
		return errTooLong
	}
	if uint64(cap(c.body)) < n {
		c.body = make([]byte, n)
	}
	c.body = c.body[:n]
	_, err = io.ReadFull(c.r, c.body)
	return err
}

func (c *netCodec) readBody(into any) error {
	if into == nil {
		return nil // it is not wanted, and has been read
	}
	return c.codec.Decode(c.body, into)
}

type serverCodec struct{ *netCodec }

func (c *serverCodec) ReadRequestHeader(r *rpc.Request) (err error) {
	r.Seq, r.ServiceMethod, _, err = c.readHeader()
	return err
}

func (c *serverCodec) ReadRequestBody(into any) error { return c.readBody(into) }

func (c *serverCodec) WriteResponse(r *rpc.Response, body any) error {
	if r.Error != "" {
		body = nil
	}
	return c.write(r.Seq, r.ServiceMethod, r.Error, body)
}

func (c *serverCodec) Close() error { return c.conn.Close() }

type clientCodec struct{ *netCodec }

func (c *clientCodec) WriteRequest(r *rpc.Request, body any) error {
	return c.write(r.Seq, r.ServiceMethod, "", body)
}

func (c *clientCodec) ReadResponseHeader(r *rpc.Response) (err error) {
	r.Seq, r.ServiceMethod, r.Error, err = c.readHeader()
	return err
}

func (c *clientCodec) ReadResponseBody(into any) error { return c.readBody(into) }

func (c *clientCodec) Close() error { return c.conn.Close() }
