// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/readstate"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file ends a connection.

// closeFlushed is Conn.Close.
func (lt *lifetime) closeFlushed() {
	c := lt.c
	ctx, cancel := context.WithTimeout(context.Background(), closingTime)
	defer cancel()
	c.mu.Lock()
	c.writing.flushAndUnlock(false)
	c.mu.Lock()
	c.writing.awaitWrittenRelocking(ctx)
	gone := lt.readerEndedLocked()
	lt.endAndUnlock(ErrClosed)
	select {
	case <-gone:
	case <-ctx.Done():
		lt.closeBelow() // the reader may also close it
	}
}

// abort is Conn.Abort.
func (lt *lifetime) abort() {
	lt.c.mu.Lock()
	lt.abrupt = true
	lt.endAndUnlock(ErrClosed)
}

// graciousLocked reports whether the connection should end graciously: closed such that no data on
// its way to the peer is destroyed. See shutSocket.
func (lt *lifetime) graciousLocked() bool {
	c := lt.c
	written := !c.writing.flushing && len(c.writing.out) == 0 && lt.writeErr == nil
	if _, foreign := errors.AsType[*PrefaceError](lt.err); foreign && !lt.client {
		return written // the preface tells a client of another protocol what it has reached
	}
	return written && !lt.abrupt && (errors.Is(lt.err, ErrClosed) || errors.Is(lt.err, ErrDrained) || errors.Is(lt.err, ErrRetired) || errors.Is(lt.err, ErrAged))
}

// shutSocket closes the underlying connection. If a socket is closed with unread data in it, or
// data arrives after the close, TCP sends a reset, and the reset destroys data that the peer has
// not read yet. A gracious end therefore only closes the writing direction. The reader then reads
// on until the peer closes too, for at most half of closingTime.
func (lt *lifetime) shutSocket(gracious bool) {
	c := lt.c
	if gracious && c.writing.finishBelow() && c.reading.limitReading(time.Now().Add(closingTime/2)) == nil {
		return
	}
	lt.closeBelow()
}

// readerEndedLocked returns a channel that is closed when the reader has ended.
func (lt *lifetime) readerEndedLocked() <-chan struct{} {
	if lt.readerEnded == nil {
		lt.lazyLocked().readerEnded = make(chan struct{})
		if lt.c.reading.state.Is(readstate.Ended) {
			close(lt.readerEnded)
		}
	}
	return lt.readerEnded
}

// closingTime bounds how long an ending connection waits until its last frames are written and
// read.
const closingTime = time.Second

// refuse ends the connection and sends the reason to the peer. The reader calls it. Then refuse
// reads and discards the peer's data for a while, because closing a socket with unread data in it
// would destroy data that the peer has not read yet.
func (lt *lifetime) refuse(why *Refusal, err error) {
	c := lt.c
	ctx, cancel := context.WithTimeout(context.Background(), closingTime)
	defer cancel()
	d := wire.Drain{Count: c.callsIn.received.Load(), Message: []byte(why.Message), ErrorID: []byte(why.ID)}
	lt.draining.Store(true)
	c.mu.Lock()
	if lt.err == nil {
		lt.lazyLocked().endReason = err
		c.reading.reader.Load().appendRepliesLocked()
		c.writing.appendLocked(func(dst []byte) []byte { return wire.AppendGoAway(dst, why.Code, &d) })
	}
	c.writing.flushAndUnlock(false)
	c.mu.Lock()
	c.writing.awaitWrittenRelocking(ctx)
	c.mu.Unlock()
	if c.writing.finishBelow() {
		// if this fails, the peer may not get the reason
		_ = c.reading.readableUntil(time.Now().Add(closingTime / 2))
		c.reading.drainBelow()
	}
	lt.end(err)
}

// breach ends the connection because the peer violated the protocol, and tells the peer.
func (lt *lifetime) breach(what string) {
	err := &ProtocolError{What: what}
	lt.refuse(&Refusal{Code: catalogue.Internal, ID: catalogue.ProtocolBroken, Message: err.Error()}, err)
}

func (lt *lifetime) end(err error) {
	lt.c.mu.Lock()
	lt.endAndUnlock(err)
}

// endAndUnlock ends the connection once, fails its calls, and cancels its requests. It unlocks
// c.mu.
func (lt *lifetime) endAndUnlock(err error) {
	c := lt.c
	if lt.err != nil {
		c.mu.Unlock()
		return
	}
	err = lt.reasonLocked(err)
	lt.err = err
	gracious := lt.graciousLocked()
	lt.hasEnded.Store(true)
	if lt.ended != nil {
		close(lt.ended)
	}
	if lt.housekeeper != nil {
		lt.housekeeper.Stop()
	}
	calls := c.callsOut.endAllLocked(err)
	c.callsIn.endAllLocked(err)
	c.quota.leaveBudgetLocked()
	c.callsIn.closeMemoryLocked()
	c.callsIn.unparkLocked()
	c.reading.startReader()
	c.mu.Unlock()

	lt.shutSocket(gracious)
	if rd := c.reading.reader.Load(); rd != nil {
		if run, runs := rd.state.Run(); runs {
			c.reading.handOver(rd, run) // so that rd, which a handler blocks, no longer counts as the reader
		}
	}
	if c.cfg.Unusable != nil {
		c.cfg.Unusable(c)
	}
	for _, f := range calls {
		f.w.fail(f.err)
	}
	if c.cfg.Ended != nil {
		c.cfg.Ended(c, err)
	}
}

// reasonLocked returns why the connection ends. Err is the error that was noticed last. A reason
// that was recorded earlier takes precedence over err.
func (lt *lifetime) reasonLocked(err error) error {
	_, io := errors.AsType[*IOError](err)
	switch {
	case lt.endReason != nil && !errors.Is(err, ErrClosed):
		return lt.endReason
	case io && lt.drained != nil:
		return lt.drained
	case io && lt.writeErr != nil:
		return lt.writeErr
	}
	return err
}

func (lt *lifetime) endedLocked() <-chan struct{} {
	if lt.ended == nil {
		lt.lazyLocked().ended = make(chan struct{})
		if lt.hasEnded.Load() {
			close(lt.ended)
		}
	}
	return lt.ended
}
