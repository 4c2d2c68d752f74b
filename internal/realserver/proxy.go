// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// A Proxy forwards data between clients and a server, and can simulate a bad network.
type Proxy struct {
	// Addr is the address to which clients connect.
	Addr string

	target string
	ctx    context.Context // ends with the proxy
	wg     sync.WaitGroup

	mu    sync.Mutex
	delay time.Duration
	whole chan struct{} // closed unless the network is cut
}

// Between starts a proxy for the server at addr, which is a network address or the absolute path of
// a unix socket. The proxy ends with the test.
func Between(t testing.TB, addr string) *Proxy {
	t.Helper()
	return between(t, addr, func(l net.Listener) net.Listener { return l })
}

func between(t testing.TB, addr string, wrap func(net.Listener) net.Listener) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{Addr: l.Addr().String(), target: addr, ctx: ctx, whole: make(chan struct{})}
	close(p.whole)
	taken := wrap(l)
	p.wg.Go(func() {
		for {
			conn, err := taken.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		p.wg.Wait()
	})
	return p
}

// Slow delays all data that the server sends. It does not reduce the bandwidth.
func (p *Proxy) Slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// Cut stops all data in both directions. Open connections remain open, and new connections wait.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole = make(chan struct{})
}

// Heal undoes Cut. Data that was sent meanwhile then arrives.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.whole)
}

// pass waits until the network lets data pass. It returns false if the proxy ends first.
func (p *Proxy) pass(due time.Time) bool {
	select {
	case <-time.After(time.Until(due)):
	case <-p.ctx.Done():
		return false
	}
	p.mu.Lock()
	whole := p.whole
	p.mu.Unlock()
	select {
	case <-whole:
		return true
	case <-p.ctx.Done():
		return false
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	if !p.pass(time.Now()) {
		return
	}
	network := "tcp"
	if filepath.IsAbs(p.target) {
		network = "unix"
	}
	server, err := (&net.Dialer{}).DialContext(p.ctx, network, p.target)
	if err != nil {
		return // the client sees its connection close
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(p.ctx)
	stop := context.AfterFunc(ctx, func() { client.Close(); server.Close() })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { defer cancel(); p.copy(server, client, func() time.Duration { return 0 }) })
	wg.Go(func() { defer cancel(); p.copy(client, server, p.slowness) })
	wg.Wait()
}

func (p *Proxy) slowness() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// copy copies data from one connection to another connection. It delays each piece separately.
func (p *Proxy) copy(to, from net.Conn, delay func() time.Duration) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	pieces := make(chan piece, 1024)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(pieces)
	wg.Go(func() {
		for one := range pieces {
			if !p.pass(one.due) {
				continue
			}
			if _, err := to.Write(one.bytes); err != nil {
				from.Close() // ends the reader
			}
		}
	})
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			pieces <- piece{buffer[:n], time.Now().Add(delay())}
		}
		if err != nil {
			return
		}
	}
}
