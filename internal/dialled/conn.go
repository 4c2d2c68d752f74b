// SPDX-License-Identifier: Apache-2.0

// Package dialled has the connections that a client has dialled: whether the server has answered,
// how many calls are open, why a connection ended, and which of several connections a call takes. A
// connection speaks yodel's own protocol, or another one through a Link. The package knows no
// calls.
package dialled

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Conn is a connection that an endpoint has dialled. It has either a mux.Conn, which speaks
// yodel's own protocol, or a Foreign, which speaks another one. Its methods may be called
// concurrently, except for Dial and Join.
type Conn struct {
	Owner   Owner
	Mux     *mux.Conn
	Foreign *Foreign

	Heard  time.Duration    // when the server answered, on the clock
	Server *identity.Server // as the server has said
	Agent  string           // of the server
	Secure bool             // it uses TLS

	up       atomic.Bool // the server has answered; set after the fields above
	once     sync.Once
	reported sync.Once     // of Connected
	answered chan struct{} // closed when the server has answered or the connection has ended
}

// An Owner is the client's side of a Conn.
type Owner interface {
	// Connected is called once, when calls can be sent. It is always called before Ended.
	Connected()
	// Unusable is called when the connection accepts no more calls.
	Unusable(c *Conn)
	// Ended is called when a connection has ended on which calls could be sent.
	Ended(err error)
}

// Dial begins yodel's own protocol on nc and waits for the server's settings, which config.Hello
// must pass to Answered. The Conn is the Owner of its mux.Conn. Without this wait, a server that is
// shutting down could accept the connection and never read from it, and the outcome of calls on it
// would be unknown. If Dial fails, the connection has ended.
func (c *Conn) Dial(ctx context.Context, nc net.Conn, config *mux.Config) error {
	answered := make(chan struct{})
	c.answered, c.Secure = answered, isSecure(nc)
	conn := mux.NewOf(c, nc, nil, true, config) //nolint:contextcheck,nolintlint // it outlives ctx
	c.Mux = conn
	select {
	case <-answered:
		if !c.up.Load() {
			return conn.Err()
		}
		return nil
	case <-ctx.Done():
	}
	if c.up.Load() { // just now
		return nil
	}
	err := mux.ErrHandshake
	if ctx.Err() == context.DeadlineExceeded { // otherwise the endpoint is closed
		err = silence(nc, answered, conn.Err)
	}
	conn.Abort()
	return err
}

func isSecure(nc net.Conn) bool {
	_, secure := nc.(interface{ ConnectionState() tls.ConnectionState })
	return secure
}

// Answered says that the server has sent its settings.
func (c *Conn) Answered(server *identity.Server, agent string) {
	c.Heard, c.Server, c.Agent = monotime.Now(), server, agent
	c.up.Store(true)
	c.answer()
}

func (c *Conn) answer() {
	c.once.Do(func() {
		close(c.answered)
		c.answered = nil
	})
}

// ReportConnected calls Owner.Connected, once. The goroutine that dials calls it, so that no reader
// goroutine waits for the hook of a new connection. Over calls it too, so that the owner learns of
// the connection before its end.
func (c *Conn) ReportConnected() { c.reported.Do(c.Owner.Connected) }

// Over says that the mux.Conn has ended.
func (c *Conn) Over(err error) {
	if c.up.Load() {
		c.ReportConnected()
		c.Owner.Ended(err)
	}
	c.answer()
}

// Load returns the number of open calls, and whether another call would wait.
func (c *Conn) Load() (open int, full bool) {
	if c.Foreign != nil {
		return c.Foreign.load()
	}
	return c.Mux.Load()
}

// Usable implements endpoints.Conn.
func (c *Conn) Usable() bool {
	if c.Foreign != nil {
		return !c.Foreign.isClosing()
	}
	return c.Mux.Usable()
}

// End implements endpoints.Conn.
func (c *Conn) End() endpoints.End {
	if c.Foreign != nil {
		return c.Foreign.end()
	}
	return endOf(c.Mux)
}

// Ended implements endpoints.Conn.
func (c *Conn) Ended() <-chan struct{} {
	if c.Foreign != nil {
		return c.Foreign.done
	}
	return c.Mux.Ended()
}

// Close implements endpoints.Conn.
func (c *Conn) Close() {
	if c.Foreign != nil {
		c.Foreign.shut(false)
		return
	}
	c.Mux.Close()
}

// CloseWhenIdle implements endpoints.Conn.
func (c *Conn) CloseWhenIdle() {
	if c.Foreign != nil {
		c.Foreign.shut(true)
		return
	}
	c.Mux.CloseWhenIdle()
}

// Stats returns the counters of the connection. In other protocols than yodel's own they have only
// its load.
func (c *Conn) Stats() introspect.Conn {
	if c.Foreign != nil {
		open, full := c.Foreign.load()
		return introspect.Conn{Open: open, Full: full}
	}
	return diagnose.Conn(c.Mux)
}
