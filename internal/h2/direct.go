// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/socket"
)

// direct writes to the socket of a connection.
type direct struct {
	socket socket.Conn   // none if the connection is not a plain socket
	count  atomic.Uint64 // of system calls
}

func (d *direct) begin(c *Conn) { d.socket = socket.Of(c.nc) }

func (d *direct) exists() bool { return d.socket.Exists() }

// write writes what the socket takes at once. One goroutine at a time calls it.
func (d *direct) write(buf []byte) (int, error) { return d.socket.Write(&d.count, buf) }

// A poll reads for a reader, and has no buffer while it waits.
type poll struct {
	rd  *reader
	try func(fd uintptr) bool // made once: a closure for each read would be an allocation
	n   int
	err error
}

func (p *poll) begin(rd *reader) {
	p.rd = rd
	p.try = p.readOn
}

// read waits for data and reads it behind what is unread.
func (p *poll) read() (int, error) {
	from := p.rd.c.direct.socket
	if !from.Exists() {
		return p.rd.readPlain()
	}
	p.n, p.err = 0, nil
	if err := from.Await(p.try); err != nil && p.err == nil && p.n == 0 {
		p.err = err
	}
	return p.n, p.err
}

func (p *poll) readOn(fd uintptr) bool {
	p.rd.ensure()
	if p.n, p.err = socket.Receive(fd, p.rd.buf[p.rd.w:]); p.n == 0 && p.err == nil {
		p.rd.release()
		return false
	}
	return true
}
