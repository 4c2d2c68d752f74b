// SPDX-License-Identifier: Apache-2.0

package endpoints

import "time"

// This file decides which endpoints a client keeps: those that the resolver reports, and earlier
// endpoints, because the resolver may be wrong. docs/discovery.md describes the rule.

// leaveTime is how long the client keeps an endpoint that answers but that the resolver no longer
// reports, if reported endpoints answer too. It is also how long such an endpoint may be
// unreachable before the client drops it.
const leaveTime = 30 * time.Second

// peakTime is how long the client remembers the size of a set. If several servers die together,
// their leases end one by one. PeakTime is longer than the time in which all these leases end.
const peakTime = 2 * time.Minute

// A doubt says whether the last set of instances is doubtful. A set is doubtful if it has less than
// half the size of a recent set: the registry may have lost its data, or its connection to the
// servers. After a doubtful set, the following sets are doubtful until they have the old size,
// because the registry may be learning of the servers one by one. For that reason, a smaller set is
// also doubtful if the resolver is back after a failure.
type doubt struct {
	size     int       // the size of the last set that was believed
	peak     int       // the largest recent size
	peakAt   time.Time // when peak was reported
	doubtful bool      // the last set was too small to be believed
}

// hear judges a set of a size. Back says that the resolver works again after a failure. Waiting
// says that endpoints that the sets before did not report are still kept.
func (d *doubt) hear(now time.Time, size int, back, waiting bool) {
	if now.Sub(d.peakAt) > peakTime {
		d.peak, d.peakAt = d.size, now
	}
	if size*2 < d.peak || size < d.peak && (back || waiting && d.doubtful) {
		d.doubtful = true
		return
	}
	d.size, d.doubtful = size, false
	if size >= d.peak {
		d.peak, d.peakAt = size, now
	}
}

// confirm ends the doubt about a set, because all endpoints that it did not report have left.
func (d *doubt) confirm(size int) { d.size, d.peak, d.doubtful = size, size, false }

// unlist marks the endpoints that the resolver no longer reports. Named is true for the addresses
// of active instances, and false for those of inactive ones. Kept has the unlisted endpoints. Gone
// has the endpoints that leave: their records are inactive, or they are not known to have ever
// answered. Waiting says that an earlier set did not report an endpoint that is kept.
func unlist[O any, C Conn](before []*Endpoint[O, C], named map[string]bool, now time.Time) (kept, gone []*Endpoint[O, C], waiting bool) {
	for _, ep := range before {
		active, is := named[ep.addr]
		switch {
		case active:
		case is || !ep.reached.Load():
			gone = append(gone, ep)
		default:
			waiting = waiting || ep.unlisted.Load()
			if !ep.unlisted.Swap(true) {
				ep.left = now
			}
			kept = append(kept, ep)
		}
	}
	return kept, gone, waiting
}

// part divides endpoints into those that the client keeps and those that leave now. Only endpoints
// that the resolver no longer reports leave.
func (l *List[O, C]) part(endpoints []*Endpoint[O, C], now time.Time) (stay, leave []*Endpoint[O, C]) {
	var named []*Endpoint[O, C]
	answers := false // a reported endpoint is connected
	for _, ep := range endpoints {
		if !ep.unlisted.Load() {
			named = append(named, ep)
			answers = answers || ep.Connected()
		}
	}
	if len(named) == len(endpoints) {
		return endpoints, nil
	}
	var at time.Time // the time for which replaced was computed
	replaced := false
	for _, ep := range endpoints {
		if ep.unlisted.Load() {
			if !ep.left.Equal(at) {
				at, replaced = ep.left, replacedSince(named, ep.left)
			}
			if ep.silent(now) || answers && (now.Sub(ep.left) >= leaveTime || replaced && !l.doubt.doubtful) {
				leave = append(leave, ep)
				continue
			}
		}
		stay = append(stay, ep)
	}
	return stay, leave
}

// silent reports whether an unlisted endpoint does not answer. Either another server listens at its
// address, or the client could not connect to it for leaveTime in spite of attempts.
func (ep *Endpoint[O, C]) silent(now time.Time) bool {
	lost := ep.lostAt.Load()
	return ep.stranger.Load() || lost != 0 && now.Sub(time.Unix(0, lost)) > leaveTime && now.Sub(ep.left) > leaveTime
}

// replacedSince considers the endpoints that the resolver has added after the time then. It reports
// whether at least half of them have been connected.
func replacedSince[O any, C Conn](named []*Endpoint[O, C], then time.Time) bool {
	joined, reached := 0, 0
	for _, ep := range named {
		if !ep.joined.Before(then) {
			joined++
			if ep.reached.Load() {
				reached++
			}
		}
	}
	return 2*reached >= joined
}

// settle drops the unlisted endpoints that may leave now.
func (l *List[O, C]) settle() {
	if l.leaving.Load() > 0 && l.dropped() {
		l.rebuildSoon()
	}
}

// dropped is the part of settle that decides which endpoints leave. It reports whether an endpoint
// leaves.
func (l *List[O, C]) dropped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	now := time.Now()
	stay, leave := l.part(l.listed, now)
	if len(leave) > 0 {
		l.listLocked(stay, leave)
		if l.leaving.Load() == 0 && l.doubt.doubtful {
			l.doubt.confirm(len(stay))
		}
	}
	l.probeLocked(now)
	return len(leave) > 0
}

// probeLocked dials endpoints that the resolver reports. Unlisted endpoints can leave only when
// reported endpoints answer. It also starts a timer that calls settle when leaveTime of the next
// endpoint has passed.
func (l *List[O, C]) probeLocked(now time.Time) {
	if l.leaving.Load() == 0 {
		return
	}
	var next time.Duration
	for _, ep := range l.listed {
		if !ep.unlisted.Load() {
			if !ep.Connected() && !ep.busy.Load() && l.dials.Load() < readyAtOnce {
				ep.dialQuietly()
			}
		} else if left := leaveTime - now.Sub(ep.left); left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	if next > 0 && !l.settling {
		l.settling = true
		time.AfterFunc(next, func() {
			l.mu.Lock()
			l.settling = false
			l.mu.Unlock()
			l.settle()
		})
	}
}
