// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/yodel-rpc/yodel"
)

// Transport returns a transport that dials as over does, and whose listeners are handed over.
// Listen uses the predecessor's socket for exactly the same address, port 0 included. If there is
// none, it creates a new one. Over is yodel.TCP, unix.Transport, or another transport whose
// listeners are sockets of the system.
//
// Call Listen before Run. Closed listeners are not handed over.
func (p *Process) Transport(over yodel.Transport) yodel.Transport { return &transport{p, over} }

type transport struct {
	process *Process
	over    yodel.Transport
}

func (t *transport) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return t.over.Dial(ctx, addr)
}

func (t *transport) Listen(addr string) (net.Listener, error) {
	p := t.process
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running {
		return nil, fmt.Errorf("restart: listen at %s before Run: what listens later is not handed over", addr)
	}
	l := &listener{process: p, wanted: addr, closed: make(chan struct{})}
	var err error
	if l.socket, err = p.legacy.take(addr); err != nil {
		return nil, fmt.Errorf("restart: the predecessor's socket for %s: %w", addr, err)
	}
	if l.inherited = l.socket != nil; !l.inherited {
		if l.socket, err = t.over.Listen(addr); err != nil {
			return nil, err
		}
		if _, ok := l.socket.(syscall.Conn); !ok {
			_ = l.socket.Close()
			return nil, fmt.Errorf("restart: listen at %s: a %T cannot be handed over, it is no socket of the system", addr, l.socket)
		}
		l.owned = true
	}
	p.listeners = append(p.listeners, l)
	return l, nil
}

// A listener accepts connections once its process may do so.
type listener struct {
	process   *Process
	socket    net.Listener
	wanted    string // the address that was passed to Listen
	inherited bool   // whether the socket is from the predecessor

	once   sync.Once
	closed chan struct{}

	// These are guarded by Process.mu.
	asked bool // whether Accept was called
	owned bool // whether only this process uses the socket; Close then removes the file of a unix socket
}

func (l *listener) Addr() net.Addr { return l.socket.Addr() }

func (l *listener) Accept() (net.Conn, error) {
	p := l.process
	select {
	case <-p.open:
	default:
		p.mu.Lock()
		l.asked = true
		p.askedLocked()
		p.mu.Unlock()
		select {
		case <-p.open:
		case <-l.closed:
			return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed}
		}
	}
	return l.socket.Accept()
}

// Close closes this process's end of the socket. The file of a unix socket stays if another process
// listens on it.
func (l *listener) Close() error {
	err := error(&net.OpError{Op: "close", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed})
	l.once.Do(func() {
		p := l.process
		p.mu.Lock()
		defer p.mu.Unlock()
		p.listeners = slices.DeleteFunc(p.listeners, func(other *listener) bool { return other == l })
		if local, ok := l.socket.(*net.UnixListener); ok {
			local.SetUnlinkOnClose(l.owned)
		}
		close(l.closed)
		p.askedLocked()
		err = l.socket.Close()
	})
	return err
}

// file returns a copy of the socket. It does not use (*net.TCPListener).File: passing that file to
// a process puts the socket into blocking mode, and with it the socket from which this process
// accepts.
func (l *listener) file() (*os.File, error) {
	raw, err := l.socket.(syscall.Conn).SyscallConn() //nolint:forcetypeassert // Listen has checked it
	if err != nil {
		return nil, err
	}
	var fd int
	failed := raw.Control(func(from uintptr) {
		syscall.ForkLock.RLock() // no process may be started between Dup and CloseOnExec
		defer syscall.ForkLock.RUnlock()
		if fd, err = syscall.Dup(int(from)); err == nil {
			syscall.CloseOnExec(fd)
		}
	})
	if err = errors.Join(failed, err); err != nil {
		return nil, fmt.Errorf("copy the socket of %s: %w", l.wanted, err)
	}
	return os.NewFile(uintptr(fd), l.wanted), nil
}

// took returns the addresses of the listeners whose sockets are from the predecessor.
func (p *Process) took() []string {
	return p.each(func(l *listener) bool { return l.inherited })
}

// own makes this process the only user of all its sockets.
func (p *Process) own() {
	p.each(func(l *listener) bool { l.owned = true; return true })
}

// disown notes that the successor uses these sockets too.
func (p *Process) disown(taken []string) {
	p.each(func(l *listener) bool {
		if i := slices.Index(taken, l.wanted); i >= 0 {
			taken = slices.Delete(taken, i, i+1)
			l.owned = false
		}
		return true
	})
}

// ended is the cancellation cause of a service's context.
type ended struct{ of *Process }

func (ended) Error() string { return "restart: this process serves no longer" }

func (ended) Unwrap() error { return context.Canceled }

// Serves reports whether another process serves at an address of this one. A yodel.Server uses it,
// so that it does not withdraw the other process's record from registries.
func (e ended) Serves(addr net.Addr) bool {
	others := e.of.each(func(l *listener) bool { return !l.owned && l.Addr().String() == addr.String() })
	return len(others) > 0
}

// each returns the addresses of the listeners for which f returns true.
func (p *Process) each(f func(*listener) bool) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	addrs := []string{}
	for _, l := range p.listeners {
		if f(l) {
			addrs = append(addrs, l.wanted)
		}
	}
	return addrs
}
