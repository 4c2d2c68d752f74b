// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
)

// This file divides a Budget. Each division computes all shares from the current state. The order
// of earlier events has no influence.

// A change is a new limit to send to a peer.
type change struct {
	to    Member
	limit Limit
}

// divide divides the budget again. The timer calls it on its own goroutine.
func (b *Budget) divide() {
	b.dividing.Lock()
	defer b.dividing.Unlock()
	b.mu.Lock()
	b.due = time.Time{}
	var measured []*Share
	if now := time.Now(); !now.Before(b.measure) {
		b.measure = now.Add(measurePeriod)
		measured = slices.Clone(b.active)
		b.rotation++
	}
	b.mu.Unlock()
	for _, s := range measured {
		s.member.Measure()
	}
	for _, s := range b.disobedient() {
		s.member.Enforce()
	}
	b.mu.Lock()
	b.active = slices.DeleteFunc(b.active, func(s *Share) bool { return !s.active })
	changes := b.divideLocked(len(measured) > 0 || len(b.active) == 0)
	b.mu.Unlock()
	for _, ch := range changes {
		ch.to.SetLimit(ch.limit)
	}
	b.mu.Lock()
	if len(b.active) > 0 {
		b.soonLocked(time.Until(b.measure))
	}
	b.mu.Unlock()
}

// Measured stores a measurement of a connection: peak and peakBytes are the highest use since the
// last measurement, and open is the number of requests that are open now.
func (s *Share) Measured(peak, peakBytes, open int) {
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.recent = max(peak, s.recent*3/4)
	s.recentBytes = max(peakBytes, s.recentBytes*3/4)
	if s.active = !s.gone && (open > 0 || s.recent > 0); !s.active {
		s.recentBytes = 0
	}
}

// needLocked sets s.target to the limit that the connection should have if the total were enough
// for all. It sets s.hungry if the connection used most of its limit. A hungry connection may get a
// higher limit.
func (b *Budget) needLocked(s *Share, floor int) {
	limit, bytes := s.most, b.bytesOf(s, s.sent)
	// The byte limit is full when the next request does not fit. That can happen when half of the
	// limit is in use.
	full := s.recentBytes >= bytes/2 && bytes < s.mostBytes
	inUnits := int(min(float64(s.recentBytes)*float64(b.total)/float64(max(b.totalBytes, 1)), math.MaxInt32))
	if s.hungry = full || s.recent >= s.sent-s.sent/4; s.hungry {
		s.target = min(max(4*s.recent, 4*inUnits, 2*s.sent, 4*scarceShare), limit)
		return
	}
	s.target = min(max(2*s.recent, 3*inUnits, floor), limit)
}

// divideLocked decides how much each connection gets, and returns the limits to send. It ignores
// small changes. Known says that the need has just been measured. An idle connection gets a higher
// limit only if known is set and no connection is hungry.
func (b *Budget) divideLocked(known bool) []change {
	b.targetsLocked()
	now := monotime.Now()
	free := b.total - b.granted - b.reserve()
	var changes []change
	var raised []*Share
	wanted := 0
	hungry := slices.ContainsFunc(b.members, func(s *Share) bool { return s.hungry })
	for _, s := range b.members {
		enough := s.sent / 8
		if !s.hungry {
			enough = s.sent / 2
		}
		if (s.hungry || known && !hungry) && s.target-s.sent > enough && s.free() {
			raised = append(raised, s)
			wanted += s.target - s.sent
		}
	}
	for _, s := range b.members {
		enough := s.sent / 4
		if wanted > free {
			enough = s.sent / 8
		}
		if s.sent-s.target > enough && s.free() {
			s.sent, s.lowering, s.lowered = s.target, true, now
			changes = append(changes, change{s.member, Limit{s.sent, b.bytesOf(s, s.sent), true}})
		}
	}
	// the connection with the lowest limit is first
	slices.SortFunc(raised, func(x, y *Share) int { return cmp.Compare(x.sent, y.sent) })
	for _, s := range raised {
		limit := min(s.target, s.granted+max(free, 0))
		if limit <= s.sent {
			continue
		}
		more := max(limit-s.granted, 0)
		free -= more
		s.sent, s.granted = limit, s.granted+more
		s.bytes = max(s.bytes, b.bytesOf(s, limit))
		b.grantLocked(more)
		changes = append(changes, change{s.member, Limit{s.sent, b.bytesOf(s, s.sent), false}})
	}
	return append(changes, b.relieveLocked()...)
}

// relieveLocked gives parts of the reserve to connections that need more and have less than an
// equal share. The other connections may keep their shares for a long time, if their requests do
// not end. If n connections need more, each gets at most 1/(n+1) of the reserve, so that a part
// remains for the next connection.
func (b *Budget) relieveLocked() (changes []change) {
	equal, left, n, single := b.total/max(len(b.members), 1), b.total-b.granted, 0, 0
	for _, s := range b.members {
		switch {
		case s.hungry && s.sent < equal:
			n++
		case s.granted == 1:
			single++
		}
	}
	// Every connection is allowed one request. These single requests must not use up the reserve.
	if len(b.members) > b.reserve() {
		left += single
	}
	level := min(equal, b.reserve()/(n+1))
	for _, s := range b.members {
		limit := min(level, s.granted+left, s.most)
		if !s.hungry || !s.free() || limit-s.sent <= s.sent/8 {
			continue
		}
		more := max(limit-s.granted, 0)
		left -= more
		s.sent, s.granted = limit, s.granted+more
		s.bytes = max(s.bytes, b.bytesOf(s, limit))
		b.grantLocked(more)
		changes = append(changes, change{s.member, Limit{limit, b.bytesOf(s, limit), false}})
	}
	return changes
}

// disobedient returns the connections whose peers have not obeyed a lower limit for obeyTime.
func (b *Budget) disobedient() (found []*Share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.members {
		if s.lowering && monotime.Now()-s.lowered >= obeyTime {
			found = append(found, s)
		}
	}
	return found
}

// free reports whether a new limit can be sent to the peer now.
func (s *Share) free() bool { return s.greeted && !s.gone && !s.lowering }

// targetsLocked sets the target of each connection. If the total is not enough for all, connections
// that need little get what they need, and the other connections get equal shares.
func (b *Budget) targetsLocked() {
	n, pool := 0, b.total-b.reserve()
	for _, s := range b.members {
		if s.fixed = s.gone || !s.greeted; s.fixed {
			s.hungry, s.target = false, s.sent
			pool -= s.granted
		} else {
			n++
		}
	}
	if n == 0 {
		return
	}
	idle, sum := b.idle(len(b.members)), 0
	for _, s := range b.members {
		if !s.fixed {
			b.needLocked(s, idle)
			sum += s.target
		}
	}
	if sum <= pool {
		return
	}
	floor := min(max(b.total/(4*n), 1), scarceShare)
	for _, s := range b.members {
		if !s.fixed {
			b.needLocked(s, floor)
		}
	}
	pool = max(pool, n)
	for satisfied := true; satisfied && n > 0; {
		level := pool / n
		satisfied = false
		for _, s := range b.members {
			if !s.fixed && s.target <= level {
				s.fixed, satisfied = true, true
				pool -= s.target
				n--
			}
		}
	}
	if n > 0 {
		b.levelLocked(n, pool)
	}
}

// levelLocked divides pool equally among the n connections whose targets are not final. The
// remainder goes to connections whose limit was above the equal share before. If shares are small,
// the connections get the remainder in turn.
func (b *Budget) levelLocked(n, pool int) {
	level, left := pool/n, pool%n
	i := 0
	for _, s := range b.members {
		if s.fixed {
			continue
		}
		s.target = level
		if level < fewestToShare {
			if (i+b.rotation*left)%n < left {
				s.target++
			}
		} else if s.sent > level && left > 0 {
			s.target++
			left--
		}
		i++
	}
}
