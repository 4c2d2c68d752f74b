// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// A proxy stands between clients and a server. It can hold up what clients send, as a slow network
// does, change it, and cut connections.
type proxy struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	mu     sync.Mutex
	hold   chan struct{} // closed to let bytes pass; nil while all pass
	credit int           // bytes from clients that pass although the rest is held
	change func([]byte)  // of what passes, in both directions
	conns  map[net.Conn]bool
	made   int // connections ever made
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	p := &proxy{l: listen(t), target: target, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.run)
	t.Cleanup(func() {
		p.l.Close()
		p.release()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) run() {
	for {
		near, err := p.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		p.conns[near], p.conns[far] = true, true
		p.made++
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(far, near, true) })
		p.wg.Go(func() { p.pass(near, far, false) })
	}
}

// pass copies from one connection to the other until either ends.
func (p *proxy) pass(to, from net.Conn, up bool) {
	b := make([]byte, 16<<10)
	for {
		n, err := from.Read(b)
		for part := b[:n]; len(part) > 0; {
			allowed, hold := p.allow(len(part), up)
			p.mu.Lock()
			change := p.change
			p.mu.Unlock()
			if change != nil {
				change(part[:allowed])
			}
			if _, err := to.Write(part[:allowed]); err != nil {
				break
			}
			part = part[allowed:]
			if len(part) > 0 {
				<-hold
			}
		}
		if err != nil {
			to.Close()
			from.Close()
			return
		}
	}
}

// allow returns how many of n bytes may pass now, and what to wait for before the rest may.
func (p *proxy) allow(n int, up bool) (int, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold == nil || !up && p.credit > 0 {
		return n, nil
	}
	n = min(n, p.credit)
	p.credit -= n
	return n, p.hold
}

// holdAfter lets n more bytes of clients pass, and then nothing in either direction.
func (p *proxy) holdAfter(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold, p.credit = make(chan struct{}), n
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold != nil {
		close(p.hold)
		p.hold = nil
	}
}

// changing makes f change what passes.
func (p *proxy) changing(f func([]byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change = f
}

// flip returns a change that damages the first occurrence of word.
func flip(word string) func([]byte) {
	var once sync.Once
	return func(b []byte) {
		if i := bytes.Index(b, []byte(word)); i >= 0 {
			once.Do(func() { b[i] ^= 1 })
		}
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// reset ends all connections as a crash of the server's machine does: with a reset, and without the
// last words.
func (p *proxy) reset() {
	p.mu.Lock()
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
	}
	p.mu.Unlock()
	p.cut()
}

// speak serves a listener whose connections are answered with answer as soon as they have sent
// something, or at once if it is a greeting, and returns its address.
func speak(t testing.TB, greeting bool, answer string) string {
	t.Helper()
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if !greeting {
					_, _ = c.Read(make([]byte, 1))
				}
				_, _ = io.WriteString(c, answer)
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// recorded is TCP that notes all bytes that come in.
type recorded struct {
	mu    sync.Mutex
	bytes []byte
}

func (r *recorded) transport() yodel.Transport {
	return transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		nc, err := yodel.TCP.Dial(ctx, addr)
		return &recordedConn{nc, r}, err
	})
}

func (r *recorded) contains(s string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Contains(r.bytes, []byte(s))
}

type recordedConn struct {
	net.Conn
	r *recorded
}

func (c *recordedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.bytes = append(c.r.bytes, b[:n]...)
	return n, err
}
