// SPDX-License-Identifier: Apache-2.0

package firstbytes

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// A Recorder is a connection of a client that records the first bytes of both sides, by which the
// client recognizes a server that speaks another protocol.
type Recorder struct {
	net.Conn
	full atomic.Bool // got needs no more bytes

	mu   sync.Mutex
	sent []byte // at most maxSent bytes
	got  []byte // at most maxGot bytes
}

// Limits of the recorded bytes. Foreign needs no more.
const (
	maxSent = 16
	maxGot  = 64
)

// A secureRecorder is a Recorder over TLS.
type secureRecorder struct {
	*Recorder
	state func() tls.ConnectionState
}

// ConnectionState returns the state of TLS, as tls.Conn does.
func (c secureRecorder) ConnectionState() tls.ConnectionState { return c.state() }

// A socketRecorder is a Recorder of a socket.
type socketRecorder struct{ *Recorder }

// NetConn returns the socket, so that a Wire can change its settings. The Recorder does not see
// what a Wire writes to the socket itself.
func (c socketRecorder) NetConn() net.Conn { return c.Conn }

// Record returns the Recorder of nc, and the connection to use in place of nc. Over TLS it has
// ConnectionState. If nc is a socket, it has NetConn.
func Record(nc net.Conn) (r *Recorder, conn net.Conn) {
	r = &Recorder{Conn: nc}
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		return r, socketRecorder{r}
	}
	if secure, ok := nc.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return r, secureRecorder{r, secure.ConnectionState}
	}
	return r, r
}

// Read implements net.Conn.
func (r *Recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if n > 0 && !r.full.Load() {
		r.mu.Lock()
		r.got = append(r.got, b[:min(n, maxGot-len(r.got))]...)
		r.full.Store(len(r.got) == maxGot)
		r.mu.Unlock()
	}
	return n, err
}

// Write implements net.Conn. It records only the bytes before the server's answer.
func (r *Recorder) Write(b []byte) (int, error) {
	if !r.full.Load() {
		r.mu.Lock()
		if len(r.got) == 0 {
			r.sent = append(r.sent, b[:min(len(b), maxSent-len(r.sent))]...)
		}
		r.mu.Unlock()
	}
	return r.Conn.Write(b)
}

// Mismatch returns a *MismatchError if the server certainly does not speak protocol. Then it has
// executed no call of this connection. Otherwise Mismatch returns nil.
func (r *Recorder) Mismatch(protocol string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !Foreign(r.sent, r.got) {
		return nil
	}
	return &MismatchError{protocol, Describe(r.got)}
}

// A MismatchError says that a server does not speak the client's protocol.
type MismatchError struct {
	Protocol string // of the client
	Server   string // what the server speaks, as a text
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the server does not speak %s: %s", e.Protocol, e.Server)
}
