// SPDX-License-Identifier: Apache-2.0

package dialled

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// A Link is a yodel.Link, without the method that makes a call.
type Link interface {
	Closing() <-chan struct{}
	Done() <-chan struct{}
	Err() error
	Close(whenIdle bool)
}

// A Foreign is the client's state of a Link.
type Foreign struct {
	Open    atomic.Int64 // calls in flight
	Replied atomic.Bool  // a call was answered

	link     Link
	guard    *guard.Guard
	recorder *firstbytes.Recorder
	protocol string
	closing  <-chan struct{}
	done     <-chan struct{}
	full     func() bool           // of the Link; nil if it has none
	shutOff  atomic.Bool           // the client has closed it
	err      atomic.Pointer[error] // why it accepts no more calls; nil before Watch has asked the Link
}

// Join begins a protocol on nc through the Link that connect makes, and takes ownership of nc, even
// if it fails. Said reports whether an error says by itself why there is no connection. If Join
// succeeds, the caller must call Watch on a goroutine.
func (c *Conn) Join(ctx context.Context, nc net.Conn, g *guard.Guard, protocol string, connect func(nc net.Conn) (Link, error), said func(err error) bool) error {
	nc = g.Conn(nc)
	recorder, forWire := firstbytes.Record(nc)
	l := &Foreign{guard: g, recorder: recorder, protocol: protocol}
	err := g.Apart("the Wire's Connect", nil, func() (err error) {
		if l.link, err = connect(forWire); err == nil {
			l.closing, l.done = l.link.Closing(), l.link.Done()
			if limited, ok := l.link.(interface{ Full() bool }); ok {
				l.full = limited.Full
			}
		}
		return err
	})
	if err != nil {
		_ = nc.Close() // err has the reason
		if !said(err) {
			if ctx.Err() != nil {
				err = mux.ErrHandshake
			}
			err = cmp.Or(recorder.Mismatch(protocol), err)
		}
		return err
	}
	c.Foreign, c.Server, c.Heard, c.Secure = l, new(identity.Server), monotime.Now(), isSecure(nc)
	c.up.Store(true)
	c.ReportConnected()
	return nil
}

// Watch tells the owner when the connection of a Link accepts no more calls, and when it has ended.
func (c *Conn) Watch() {
	l := c.Foreign
	select {
	case <-l.closing:
	case <-l.done:
	}
	why := l.guard.Apart("the Link's Err", nil, l.link.Err)
	if why != nil {
		why = cmp.Or(l.recorder.Mismatch(l.protocol), why)
	}
	l.err.Store(&why)
	c.Owner.Unusable(c)
	<-l.done
	switch {
	case l.shutOff.Load():
		c.Owner.Ended(mux.ErrClosed)
	case why == nil, errors.Is(why, io.EOF):
		c.Owner.Ended(mux.ErrDrained)
	default:
		c.Owner.Ended(why)
	}
}

func (l *Foreign) load() (open int, full bool) {
	return int(l.Open.Load()), l.full != nil && l.full()
}

func (l *Foreign) isClosing() bool {
	select {
	case <-l.closing:
	case <-l.done:
	default:
		return false
	}
	return true
}

func (l *Foreign) end() endpoints.End {
	end := endpoints.End{Worked: l.Replied.Load()}
	if err := l.err.Load(); err != nil {
		end.Err = *err
	}
	return complete(end)
}

// shut closes the Link. A second call with whenIdle false cuts off the calls in flight.
func (l *Foreign) shut(whenIdle bool) {
	l.shutOff.Store(true)
	_ = l.guard.Apart("the Link's Close", nil, func() error { // a failure is in the log
		l.link.Close(whenIdle)
		return nil
	})
}

// Unserved returns err, with which a call failed. If the server speaks another protocol, that is
// the reason instead, and the call was not executed.
func (l *Foreign) Unserved(err error) error {
	if foreign := l.recorder.Mismatch(l.protocol); foreign != nil {
		return &mux.CallError{Cause: foreign, NotProcessed: true}
	}
	return err
}
