// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/aging"
)

// lifetime is the role of the connection as a whole: the settings at its beginning, housekeeping,
// keepalive, drain and end.
//
// When the connection ends, lifetime ends the open calls, requests and streams of the other roles.
type lifetime struct {
	c *Conn
	*lazyLifetime
	err         error
	housekeeper *time.Timer // calls housekeep
	housekeepAt int64       // when housekeeper fires; never when it is not set
	helloBy     int64       // when the peer's settings must have arrived; 0 once they have
	pingAt      int64
	progress    uint64      // the value of written at the last keepalive check
	greeting    atomic.Bool // the peer's settings have not arrived
	draining    atomic.Bool // this side accepts no more requests, and then ends the connection
	hasEnded    atomic.Bool // err is set
	pinged      bool        // a keepalive ping waits for a sign of life from the peer
	answered    bool        // the peer has answered a ping, so it has read this side's settings
	client      bool        // this side has dialled; it does not change
	abrupt      bool        // the connection ends at once, without waiting for output
}

// lazyLifetime is the part of lifetime that is allocated on first use.
type lazyLifetime struct {
	accepted uint64 // how many requests the peer processes, once drained is set
	// set once this side sends no more requests: the peer drains, or this side retires the
	// connection
	drained error
	// closed when this side accepts no more requests; nil before Draining is called
	drainBegun chan struct{}
	linger     int64         // when a drained connection is closed; 0 when it does not drain
	age        aging.Age     // see age.go
	retired    bool          // this side or the peer has ended the connection because of its age or idleness
	sweepAfter int64         // the next search for passed deadlines begins no earlier; 0 means at any time
	ended      chan struct{} // closed when err is set; nil when no goroutine waits
	// closed when the reader has ended; nil when no goroutine waits
	readerEnded chan struct{}
	pings       map[uint64]chan struct{} // by number
	nextPing    uint64                   // the number of the last ping
	endReason   error                    // why this side has begun to end the connection, after a drain notice
	writeErr    *IOError                 // a write has failed, or the peer has closed the connection
	endAt       int64                    // when the connection ends because of writeErr; 0 means never
	endBy       int64                    // the latest time for endAt
	endFrames   uint64                   // framesIn at the last check
	stallFrom   int64                    // when this side began to watch an unfinished message; 0 when there is none
	stallBytes  uint64                   // bytesIn at stallFrom
	// The part of written that the peer had acknowledged at the last keepalive check. 0 means all.
	acknowledged int64
}

// noLifetime is shared by all connections without a lazyLifetime. Nothing changes it.
var noLifetime = new(lazyLifetime)

// lazyLocked returns the lazy part for writing to it.
func (lt *lifetime) lazyLocked() *lazyLifetime { return ownPart(&lt.lazyLifetime, noLifetime) }
