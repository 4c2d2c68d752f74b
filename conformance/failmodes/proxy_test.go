// SPDX-License-Identifier: Apache-2.0

package failmodes_test

import (
	"context"
	"net"
	"sync"

	"github.com/yodel-rpc/yodel/transport/mem"
)

// A proxy relays connections to a server. It can hold what passes in either direction.
type proxy struct {
	listener net.Listener
	up, down *gate // towards the server, and towards the client
	relays   sync.WaitGroup
	ended    chan struct{}
}

// startProxy relays the connections that it accepts at from to the listener at to.
func startProxy(network *mem.Network, from, to string) (*proxy, error) {
	l, err := network.Listen(from)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	p := &proxy{listener: l, up: newGate(ended), down: newGate(ended), ended: ended}
	p.relays.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := network.Dial(context.Background(), to)
			if err != nil {
				_ = client.Close() // as a proxy does whose server is gone
				continue
			}
			p.relays.Go(func() { p.up.relay(server, client) })
			p.relays.Go(func() { p.down.relay(client, server) })
		}
	})
	return p, nil
}

// refuse refuses new connections. Those that are open stay.
func (p *proxy) refuse() { _ = p.listener.Close() }

// stop opens both gates and waits for the relays, which end with the connections of the client.
func (p *proxy) stop() {
	p.refuse()
	close(p.ended)
	p.relays.Wait()
}

// A gate is one direction of a proxy. It is open or it holds what comes.
type gate struct {
	mu    sync.Mutex
	held  chan struct{} // closed by release; nil while the gate is open
	came  chan struct{} // closed when the first bytes are held
	ended <-chan struct{}
}

func newGate(ended <-chan struct{}) *gate { return &gate{ended: ended} }

// hold closes the gate. The channel that it returns is closed when bytes wait at the gate.
func (g *gate) hold() (came <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held, g.came = make(chan struct{}), make(chan struct{})
	return g.came
}

// release opens the gate again.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.held)
	g.held = nil
}

// pass returns when the gate is open.
func (g *gate) pass() {
	g.mu.Lock()
	held, came := g.held, g.came
	if held != nil && came != nil {
		close(came)
		g.came = nil
	}
	g.mu.Unlock()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-g.ended:
	}
}

// relay copies from one connection to the other until either ends, and then ends both.
func (g *gate) relay(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			g.pass()
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
