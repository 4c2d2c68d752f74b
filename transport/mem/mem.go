// SPDX-License-Identifier: Apache-2.0

// Package mem connects clients and servers of one process through memory: no sockets, no ports.
// It behaves like TCP on one machine, and works inside a testing/synctest bubble, where time is
// fake and a test of a ten second timeout takes none.
//
//	network := mem.New()
//	listener, err := network.Listen("pricing")
//	conn, err := network.Dial(ctx, "pricing")
package mem

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
)

// backlog is how many connections a listener holds that Accept has not returned yet. When they are
// that many, Dial waits.
const backlog = 128

var errRefused = errors.New("connection refused: nobody listens there")

// A Network is a transport whose addresses exist only in this value. Two networks are separate. It
// may be used concurrently.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	listened  int // number of generated addresses
	dialed    int
}

// New returns a network without listeners.
func New() *Network { return &Network{listeners: map[string]*listener{}} }

// Listen accepts connections at addr, which may be any text. The port 0, or an empty address,
// selects a free one, which the listener's Addr returns.
func (n *Network) Listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host, free := strings.CutSuffix(addr, ":0"); free || addr == "" {
		addr = n.freeLocked(host)
	}
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "mem", Addr: address(addr), Err: errors.New("address already in use")}
	}
	l := &listener{network: n, addr: address(addr), queue: make(chan *conn, backlog), closed: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

func (n *Network) freeLocked(host string) string {
	if host == "" {
		host = "mem"
	}
	for {
		n.listened++
		addr := fmt.Sprintf("%s:%d", host, n.listened)
		if n.listeners[addr] == nil {
			return addr
		}
	}
}

// Dial connects to the listener at addr, and fails at once if there is none. Like TCP it does not
// wait for Accept, unless many other connections are waiting.
func (n *Network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.dialed++
	// The number lets a server's log distinguish connections.
	local := address(fmt.Sprintf("%s/%d", addr, n.dialed))
	n.mu.Unlock()

	err := ctx.Err()
	if err == nil && l == nil {
		err = errRefused
	}
	if err == nil {
		client, server := newConns(local, address(addr))
		if err = l.enqueue(ctx, server); err == nil {
			return client, nil
		}
	}
	return nil, &net.OpError{Op: "dial", Net: "mem", Addr: address(addr), Err: err}
}

// An address is the name of a listener, or of a connection to it.
type address string

func (a address) Network() string { return "mem" }
func (a address) String() string  { return string(a) }

type listener struct {
	network *Network
	addr    address
	queue   chan *conn    // dialed, not accepted
	closed  chan struct{} // closed by Close
	close   sync.Once
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed: // checked before queued connections
	default:
		select {
		case c := <-l.queue:
			return c, nil
		case <-l.closed:
		}
	}
	return nil, &net.OpError{Op: "accept", Net: "mem", Addr: l.addr, Err: net.ErrClosed}
}

// Close frees the address and closes the connections that were not accepted.
func (l *listener) Close() error {
	l.close.Do(func() {
		l.network.mu.Lock()
		delete(l.network.listeners, string(l.addr))
		l.network.mu.Unlock()
		close(l.closed)
	})
	for {
		select {
		case c := <-l.queue:
			_ = c.Close()
		default:
			return nil
		}
	}
}

func (l *listener) enqueue(ctx context.Context, c *conn) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.closed:
		return errRefused
	case l.queue <- c:
	}
	select {
	case <-l.closed: // c may have been queued after Close has emptied the queue
		return errRefused
	default:
		return nil
	}
}
