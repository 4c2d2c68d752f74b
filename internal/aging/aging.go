// SPDX-License-Identifier: Apache-2.0

// Package aging decides when a connection ends because it is old, or because it has been idle.
package aging

import (
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
)

// checks is the number of checks in the time that a connection may be idle. Because of these
// checks, a call does not have to record when it begins and ends.
const checks = 4

// An Age is what is known of the age and the activity of one connection. The zero value never ends.
// A lock of the owner guards it.
type Age struct {
	retireAt int64 // when the connection is too old; 0 never
	idleTime time.Duration
	checkAt  int64  // when to check next for activity; 0 never
	seen     uint64 // the work at the last check
	open     bool   // calls were open at the last check
	idle     int    // how many checks in a row found no activity
}

// Begin begins the checks. The connection may be idle for idleTime, and is too old at retireAt; 0
// means no limit.
func (a *Age) Begin(now int64, idleTime time.Duration, retireAt int64) {
	*a = Age{retireAt: retireAt, idleTime: idleTime}
	if idleTime > 0 {
		a.checkLater(now)
	}
}

func (a *Age) checkLater(now int64) { a.checkAt = monotime.Later(now, max(a.idleTime/checks, 1)) }

// Next returns when to call Ended next, or monotime.Never.
func (a *Age) Next() int64 {
	next := int64(monotime.Never)
	if a.retireAt != 0 {
		next = a.retireAt
	}
	if a.checkAt != 0 {
		next = min(next, a.checkAt)
	}
	return next
}

// Ended reports, once, whether the connection is too old or has been idle for too long. Work is how
// many calls have begun so far, and open says that calls are open.
func (a *Age) Ended(now int64, work uint64, open bool) bool {
	if a.checkAt != 0 && now >= a.checkAt {
		if work != a.seen || open || a.open { // a call that was open may have ended just now
			a.idle = 0
		} else {
			a.idle++
		}
		a.seen, a.open = work, open
		a.checkLater(now)
	}
	if a.idle < checks && (a.retireAt == 0 || now < a.retireAt) {
		return false
	}
	*a = Age{}
	return true
}
