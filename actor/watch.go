// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"context"
	"maps"
	"slices"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file informs actors of the connections of their System.

// connect wraps the Connect of the server. It notes the address of the client's System.
func (s *System) connect(own func(context.Context, *yodel.Peer) error) func(context.Context, *yodel.Peer) error {
	return func(ctx context.Context, p *yodel.Peer) error {
		if own != nil {
			if err := own(ctx, p); err != nil {
				return err
			}
		}
		socket := p.Addr.String()
		addr := p.Metadata[keySystem]
		if addr == "" || len(addr) > 2*maxName {
			addr = socket
		}
		s.mu.Lock()
		if addr != socket && addr[0] == '@' {
			s.forgetPeersLocked()
			s.peers[addr] = p
		}
		s.sockets[socket] = append(s.sockets[socket], addr)
		s.mu.Unlock()
		//nolint:contextcheck,nolintlint // it is told on another goroutine
		s.inform("OnConnected", func(ctx context.Context, w Watcher) { w.OnConnected(ctx, addr) })
		return nil
	}
}

// forgetPeersLocked removes the peers whose connections have ended, if there are many.
func (s *System) forgetPeersLocked() {
	if len(s.peers) < s.manyPeers {
		return
	}
	for addr, p := range s.peers {
		select {
		case <-p.Done():
			delete(s.peers, addr)
		default:
		}
	}
	s.manyPeers = 2*len(s.peers) + manyStreams
}

// onConn wraps an OnConn, and informs the actors that are Watchers. Clients that a server has
// accepted are connected once its Connect has returned.
func (s *System) onConn(own func(introspect.ConnEvent), accepts bool) func(introspect.ConnEvent) {
	return func(e introspect.ConnEvent) {
		if own != nil {
			own(e)
		}
		addr, connected := e.Addr, true
		switch e.Kind {
		case introspect.Connected:
			s.inform("OnConnected", func(ctx context.Context, w Watcher) { w.OnConnected(ctx, addr) })
		case introspect.ConnectFailed:
			s.inform("OnNetworkError", func(ctx context.Context, w Watcher) { w.OnNetworkError(ctx, addr, e.Err) })
		case introspect.ReadFailed, introspect.WriteFailed, introspect.Disconnected, introspect.Closed:
			if accepts {
				addr, connected = s.forgetSocket(addr)
			}
			if e.Kind == introspect.ReadFailed || e.Kind == introspect.WriteFailed {
				s.inform("OnNetworkError", func(ctx context.Context, w Watcher) { w.OnNetworkError(ctx, addr, e.Err) })
			}
			if connected {
				s.inform("OnDisconnected", func(ctx context.Context, w Watcher) { w.OnDisconnected(ctx, addr) })
			}
		case introspect.Accepted, introspect.ListenFailed, introspect.Refused:
		}
	}
}

// forgetSocket returns the address of the client that was connected from a socket.
func (s *System) forgetSocket(socket string) (addr string, connected bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := s.sockets[socket]
	if len(addrs) == 0 {
		return socket, false
	}
	if addr = addrs[0]; len(addrs) == 1 {
		delete(s.sockets, socket)
	} else { // a transport whose sockets have no addresses of their own
		s.sockets[socket] = slices.Delete(addrs, 0, 1)
	}
	return addr, true
}

// inform lets the Watchers handle an event in their turn.
func (s *System) inform(what string, method func(context.Context, Watcher)) {
	s.mu.Lock()
	watchers := make(map[*cell]Watcher, len(s.watchers))
	maps.Copy(watchers, s.watchers)
	s.mu.Unlock()
	for c, w := range watchers {
		c.inform(what, func(ctx context.Context) error { method(ctx, w); return nil })
	}
}
