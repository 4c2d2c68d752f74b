// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"sync"
)

// A proxy stands before a server. While it drops, nothing passes it in either direction, and nobody
// is told, as when a network has lost its way; what was sent meanwhile arrives when that is over,
// as TCP sends again what was lost.
type proxy struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu       sync.Mutex
	changed  *sync.Cond
	dropping bool
	closed   bool
	conns    map[net.Conn]bool
}

// startProxy starts a proxy before the server at an address.
func startProxy(server string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, server: server, conns: make(map[net.Conn]bool)}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// drop returns what begins or ends the dropping.
func (p *proxy) drop(on bool) func() error {
	return func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dropping = on
		p.changed.Broadcast()
		return nil
	}
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // it was closed
		}
		p.wg.Go(func() { p.pass(client) })
	}
}

// pass carries a connection on.
func (p *proxy) pass(client net.Conn) {
	if !p.open(client) {
		return
	}
	defer p.end(client)
	// nobody but close ends it, and it is on this machine
	server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.server)
	if err != nil || !p.open(server) {
		return
	}
	defer p.end(server)
	p.wg.Go(func() { p.copy(server, client) })
	p.copy(client, server)
}

// copy carries bytes one way.
func (p *proxy) copy(to, from net.Conn) {
	defer p.end(to)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if !p.passes() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return // a connection of yodel's has nothing to say once one side has ended it
		}
	}
}

// passes waits while the proxy drops, and reports whether there is anybody left to pass anything
// to.
func (p *proxy) passes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.dropping && !p.closed {
		p.changed.Wait()
	}
	return !p.closed
}

func (p *proxy) open(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *proxy) end(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

// close ends the proxy and all connections.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.changed.Broadcast()
	_ = p.listener.Close()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
