// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/socket"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file finds out whether the peer is alive. It handles pings, keepalive, and messages that
// stop arriving.

func (lt *lifetime) onPing(payload []byte) bool {
	c := lt.c
	if len(payload) != pingSize {
		lt.breach("a ping without 8 bytes")
		return false
	}
	c.mu.Lock()
	// otherwise the queued output shows the peer that this side is alive
	if len(c.writing.out) < c.cfg.MaxUnsent {
		c.writing.sendPingLocked(wire.Pong, payload)
	}
	c.writing.flushAndUnlock(false)
	return true
}

const pingSize = 8

func (lt *lifetime) onPong(payload []byte) {
	c := lt.c
	if len(payload) != pingSize {
		return
	}
	n := binary.LittleEndian.Uint64(payload)
	c.mu.Lock()
	if ch := lt.pings[n]; ch != nil {
		close(ch)
		delete(lt.pings, n)
	}
	lt.answered = true
	c.quota.obeyedLocked(n)
	c.mu.Unlock()
}

// nextPingLocked returns the number of the next ping.
func (lt *lifetime) nextPingLocked() uint64 {
	lazy := lt.lazyLocked()
	lazy.nextPing++
	return lazy.nextPing
}

// ping is Conn.Ping.
func (lt *lifetime) ping(ctx context.Context) (time.Duration, error) {
	c := lt.c
	ch := make(chan struct{})
	began := time.Now()
	c.mu.Lock()
	n := lt.nextPingLocked()
	if lt.pings == nil {
		lt.lazyLocked().pings = make(map[uint64]chan struct{})
	}
	lt.pings[n] = ch
	ended := lt.endedLocked()
	c.reading.startReader()
	c.writing.sendPingLocked(wire.Ping, binary.LittleEndian.AppendUint64(nil, n))
	c.writing.flushAndUnlock(false)
	select {
	case <-ch:
		return time.Since(began), nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(lt.pings, n)
		c.mu.Unlock()
		return 0, context.Cause(ctx)
	case <-ended:
		return 0, c.Err()
	}
}

// keepAliveLocked pings a peer that has been silent, and reports whether the peer is alive. A peer
// is alive if it sends something, or if it accepts data that was written to it. On a slow link a
// ping can wait in the queue behind megabytes of a message. A side that only receives therefore
// pings too: its peer receives that ping, although the peer's answer has to wait in its queue.
func (lt *lifetime) keepAliveLocked(now int64) bool {
	c := lt.c
	lt.pingAt = monotime.Later(now, c.cfg.KeepAlive)
	c.callsIn.trimMemoryLocked()
	lt.endStalledLocked(now)
	heard, wrote, backlog := c.reading.heard.Swap(false), c.writing.written != lt.progress, c.writing.written != c.writing.queued
	lt.progress = c.writing.written
	moved := wrote && backlog || lt.acknowledgesLocked()
	switch {
	case heard || moved:
		lt.pinged = false
		if !heard || wrote || backlog {
			return true
		}
	// this side does not read now, so it cannot notice the peer's frames, but it still has to send
	// something
	case c.reading.holding:
	case lt.pinged:
		return false
	default:
		lt.pinged = true
	}
	c.writing.sendPingLocked(wire.Ping, make([]byte, pingSize))
	return true
}

// acknowledgesLocked reports whether the peer has acknowledged new bytes since the last check. The
// operating system of a hung peer also acknowledges, but only until its receive buffer is full.
// The acknowledgment of bytes such as pings, which are always acknowledged at once, proves nothing.
func (lt *lifetime) acknowledgesLocked() bool {
	c := lt.c
	if c.callsOut.window.Open() == 0 && c.callsIn.inOpen == 0 {
		return false
	}
	waits, ok := socket.Unacknowledged(c.nc)
	before := lt.acknowledged
	if !ok || waits == 0 && before == 0 {
		return false
	}
	last := lt.lazyLocked()
	if waits == 0 {
		last.acknowledged = 0
		return true
	}
	last.acknowledged = int64(c.writing.written) - int64(waits) //nolint:gosec // negative while a write is in progress
	return before != 0 && last.acknowledged != before
}

// leastProgress is the lowest average rate, in bytes per second, at which a peer must send while
// one of its messages is incomplete. A slower message counts as stalled.
const leastProgress = 4 << 10

// endStalledLocked ends incomplete requests and messages if the peer has sent almost nothing for
// the time after which a silent peer counts as dead. Pings keep a connection alive, but they must
// not keep this side holding the memory of a message that does not arrive.
func (lt *lifetime) endStalledLocked(now int64) {
	c := lt.c
	unfinished := c.callsIn.unfinishedLocked()
	if len(unfinished) == 0 {
		if lt.stallFrom != 0 {
			lt.lazyLocked().stallFrom = 0
		}
		return
	}
	last, came := lt.lazyLocked(), c.count.bytesIn.Load()
	took := now - last.stallFrom
	moves := came-last.stallBytes >= uint64(float64(took)/float64(time.Second)*leastProgress)
	switch held := c.reading.holding || len(c.writing.out) >= c.cfg.MaxUnsent; { // this side does not read
	case last.stallFrom == 0, moves, held:
		last.stallFrom, last.stallBytes = now, came
		return
	case took < 2*int64(c.cfg.KeepAlive):
		return
	}
	for _, r := range unfinished {
		if r.collected == nil {
			r.stream.receiving.closeReceiveLocked(&BrokenError{Cause: errStalled})
		} else if int64(r.Arrived) <= last.stallFrom {
			c.callsIn.abandonRequestLocked(r, catalogue.RequestCutShort, "the rest of the request did not come in time")
		}
	}
	last.stallFrom = 0
}

var errStalled = errors.New("the rest of it did not come in time")

// stuckTime is how long a reader waits for room while no one-way request ends. After that this side
// assumes that the one-way handlers wait for replies, which it does not read meanwhile.
func (lt *lifetime) stuckTime() time.Duration {
	c := lt.c
	if c.cfg.KeepAlive > 0 {
		return c.cfg.KeepAlive
	}
	return 15 * time.Second
}

// peerGoneLocked makes the connection end with err when the reader has read the peer's last frames,
// or after limit at the latest.
func (lt *lifetime) peerGoneLocked(err *IOError, limit time.Duration) {
	c := lt.c
	if lt.writeErr != nil {
		return
	}
	now, last := c.now(), lt.lazyLocked()
	last.writeErr = err
	last.endAt, last.endBy, last.endFrames = now+int64(closingTime)/4, monotime.Later(now, limit), c.count.framesIn.Load()
	lt.housekeepByLocked(lt.endAt)
}
