// SPDX-License-Identifier: Apache-2.0

package keys

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A proxy stands before a server. It keeps its address when the server is another one.
type proxy struct {
	addr   string
	target atomic.Value    // string: where the server is; empty while there is none
	delay  atomic.Int64    // of each piece, in nanoseconds, in both directions
	ctx    context.Context //nolint:containedctx // ends with the proxy
	end    context.CancelFunc
	wg     sync.WaitGroup
	l      net.Listener

	mu    sync.Mutex
	conns map[net.Conn]bool // of clients
}

func newProxy(t testing.TB) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), l: l, conns: make(map[net.Conn]bool)}
	p.target.Store("")
	p.ctx, p.end = context.WithCancel(context.Background())
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(conn) })
		}
	})
	return p
}

func (p *proxy) close() {
	p.end()
	_ = p.l.Close()
	p.reset()
	p.wg.Wait()
}

// reset resets the connections of clients. What they have sent by then still gets to the server,
// after the delay.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // it was accepted from TCP
		_ = conn.Close()
	}
	clear(p.conns)
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	target := p.target.Load().(string) //nolint:forcetypeassert // nothing else is stored
	if target == "" {
		return
	}
	server, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	stop := context.AfterFunc(p.ctx, func() { server.Close() })
	defer stop()
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		p.copy(server, client)
		server.Close() // when all has been delivered
	})
	p.copy(client, server)
	client.Close()
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	p.mu.Unlock()
}

// copy copies until an end is closed, each piece after the delay.
func (p *proxy) copy(to, from net.Conn) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if delay := time.Duration(p.delay.Load()); delay > 0 {
				select {
				case <-time.After(delay):
				case <-p.ctx.Done():
				}
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
