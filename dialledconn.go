// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// A dialledConn is a connection that an endpoint has dialled. It has either a mux.Conn, which
// speaks yodel's own protocol, or a link, which speaks the protocol of a Wire.
type dialledConn struct {
	mux  *mux.Conn
	link *link
	ep   *Endpoint

	served   *serverConn     // nil if the client has no Server
	heard    time.Duration   // when the server's settings arrived, on the clock; set before up
	server   *serverIdentity // from the server's settings; set before up
	agent    string          // of the server; set before up
	secure   bool            // it uses TLS
	up       atomic.Bool
	once     sync.Once
	answered chan struct{} // closed when the server has answered or the connection has ended
}

// whose returns the dialledConn that owns conn.
func whose(conn *mux.Conn) *dialledConn { return conn.Owner().(*dialledConn) } //nolint:forcetypeassert // set by connect

// configure sets the callbacks of config, which all connections of the client share. The callbacks
// find the endpoint by the connection.
func (c *Client) configure(config *mux.Config) {
	config.Hello = func(conn *mux.Conn, l *wire.Limits) *mux.Refusal { return whose(conn).hello(conn, l) }
	config.Unusable = func(conn *mux.Conn) { whose(conn).ep.remove(whose(conn)) }
	config.Ended = func(conn *mux.Conn, err error) { whose(conn).hasEnded(err) }
	if c.opts.Server != nil {
		config.Bind = func(conn *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) { return whose(conn).served.bind(conn, b) }
	}
}

// hello handles the server's settings.
func (d *dialledConn) hello(conn *mux.Conn, l *wire.Limits) *mux.Refusal {
	if d.served != nil {
		if refusal := d.served.hello(conn, l); refusal != nil {
			return refusal
		}
	}
	d.heard, d.agent = clock(), agentOf(l)
	d.server = identityOf(l, d.ep.identity.Load())
	d.up.Store(true)
	c := d.ep.client
	c.event(ConnEvent{Kind: introspect.Connected, Addr: d.ep.Addr()})
	d.answer()
	return nil
}

func (d *dialledConn) answer() {
	d.once.Do(func() {
		close(d.answered)
		d.answered = nil
	})
}

// hasEnded handles the end of the connection.
func (d *dialledConn) hasEnded(err error) {
	if d.served != nil {
		d.served.unlink()
	}
	if d.up.Load() {
		d.ep.client.event(ending(d.ep.Addr(), err))
	}
	d.answer()
}

// load returns the number of open calls, and whether another call would wait.
func (d *dialledConn) load() (open int, full bool) {
	if d.link != nil {
		return int(d.link.open.Load()), d.link.full != nil && d.link.full()
	}
	return d.mux.Load()
}

// usable reports whether the connection accepts further calls.
func (d *dialledConn) usable() bool {
	if d.link != nil {
		return !d.link.isClosing()
	}
	return d.mux.Usable()
}

// aged reports whether the connection accepts no more calls because it was idle or old.
func (d *dialledConn) aged() bool { return d.link == nil && d.mux.Aged() }

// err returns why the connection accepts no more calls, or nil.
func (d *dialledConn) err() error {
	if d.link != nil {
		return d.link.why()
	}
	return d.mux.Err()
}

// worked reports whether calls succeeded on a connection that ended with err.
func (d *dialledConn) worked(err error) bool {
	if d.link != nil {
		return d.link.replied.Load()
	}
	return d.mux.Counters().FramesIn >= workedFrames || errors.Is(err, mux.ErrDrained) && d.mux.Accepted() > 0
}

// ended returns a channel that is closed when the connection has ended.
func (d *dialledConn) ended() <-chan struct{} {
	if d.link != nil {
		return d.link.done
	}
	return d.mux.Ended()
}

// close ends the connection now. CloseWhenIdle ends it when its calls have ended.
func (d *dialledConn) close() {
	if d.link != nil {
		d.link.shut(false)
		return
	}
	d.mux.Close()
}

func (d *dialledConn) closeWhenIdle() {
	if d.link != nil {
		d.link.shut(true)
		return
	}
	d.mux.CloseWhenIdle()
}
