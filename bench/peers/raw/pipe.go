// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"sync"
)

// A pipe carries asynchronous calls over one connection. Who starts one appends to a buffer, which
// a goroutine writes while another buffer is filled; replies come in the order of the calls.
type pipe struct {
	request func(dst []byte) []byte
	check   func(reply []byte) error
	in      frames
	wake    chan struct{} // the writer, when the buffer is not empty any more

	mu      sync.Mutex
	room    sync.Cond // the buffer was taken
	out     []byte
	err     error
	started uint32
	done    [1 << 16]func(error) // of each call that is open, by its number
}

func newPipe(c *client, conn net.Conn) *pipe {
	p := &pipe{in: frames{conn: conn}, wake: make(chan struct{}, 1)}
	p.room.L = &p.mu
	p.request, p.check = c.work()
	go p.write()
	go p.read()
	return p
}

func (p *pipe) start(done func(error)) {
	p.mu.Lock()
	for len(p.out) >= batch && p.err == nil {
		p.room.Wait()
	}
	slot := &p.done[p.started%uint32(len(p.done))]
	err := p.err
	if *slot != nil {
		err = errors.Join(err, errors.New("too many calls are open"))
	}
	if err != nil {
		p.mu.Unlock()
		done(err)
		return
	}
	*slot = done
	begin := len(p.out)
	p.out = p.request(appendHeader(p.out, 0, p.started))
	binary.LittleEndian.PutUint32(p.out[begin:], uint32(len(p.out)-begin-header))
	p.started++
	p.mu.Unlock()
	if begin == 0 {
		p.wake <- struct{}{}
	}
}

func (p *pipe) write() {
	var out []byte
	for range p.wake {
		runtime.Gosched() // let more come
		p.mu.Lock()
		out, p.out = p.out, out[:0]
		p.mu.Unlock()
		p.room.Signal()
		if _, err := p.in.conn.Write(out); err != nil {
			p.end(err)
			return
		}
	}
}

func (p *pipe) read() {
	var next uint32
	for {
		if err := p.in.read(); err != nil {
			p.end(err)
			return
		}
		p.mu.Lock()   // once for all frames: what was started before they came is seen then
		p.mu.Unlock() //nolint:staticcheck // see above
		for number, body, ok := p.in.next(); ok; number, body, ok = p.in.next() {
			slot := &p.done[number%uint32(len(p.done))]
			done := *slot
			*slot = nil
			if number != next || done == nil {
				p.end(errors.New("a reply came that is not the next one"))
				return
			}
			next++
			done(p.check(body))
		}
	}
}

// end fails the calls that are open, and those to come.
func (p *pipe) end(err error) {
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	p.room.Signal()
	for i, done := range p.done {
		if done != nil {
			p.done[i] = nil
			done(err)
		}
	}
}
