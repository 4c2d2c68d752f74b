// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"time"
)

// This file decides which endpoints there are: those that the resolver names, and those that it
// named before and that stay because the resolver may be wrong. docs/discovery.md has the rule in
// words.

// leaveTime is how long an endpoint that answers stays although the resolver does not name it any
// more, if others that it names answer; and how long one may not answer until it is dropped.
const leaveTime = 30 * time.Second

// peakTime is how long a size of the set is remembered: longer than the leases of servers that die
// together take to end one by one.
const peakTime = 2 * time.Minute

// update makes the set what the resolver says. Endpoints that stay keep their connections and
// state.
func (cl *cluster) update(instances []Instance) {
	if cl.list(instances) {
		cl.source.list(context.Background(), cl.client, 0)
	}
	cl.rebuild()
}

// list is the part of update that decides which endpoints there are. It reports whether there are
// none.
func (cl *cluster) list(instances []Instance) (none bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.closed {
		return false
	}
	cl.err, cl.errText, cl.heard = nil, "", clock()
	before := cl.listed
	endpoints, seen := cl.namedLocked(before, instances)
	doubted := false // a set that was not believed is remembered by what it left out
	var gone []*Endpoint
	now := time.Now()
	for _, ep := range before {
		addr := ep.Addr()
		active, named := seen[addr]
		switch {
		case active:
		// its record says that it gets no calls, or nothing says that it ever answered
		case named || !ep.reached.Load():
			gone = append(gone, ep)
		default:
			doubted = doubted || ep.unlisted.Load()
			if !ep.unlisted.Swap(true) {
				ep.left = now
			}
			endpoints = append(endpoints, ep)
		}
	}
	cl.implausible = cl.doubtfulLocked(len(seen), doubted)
	endpoints, left := cl.partLocked(endpoints, now)
	cl.listLocked(endpoints, append(gone, left...))
	cl.probeLocked(now)
	return len(endpoints) == 0
}

// namedLocked returns the endpoints of the instances that get calls, those of before if there are,
// and which addresses the instances have: true for those that get calls.
func (cl *cluster) namedLocked(before []*Endpoint, instances []Instance) (endpoints []*Endpoint, seen map[string]bool) {
	known := make(map[string]*Endpoint, len(before))
	for _, ep := range before {
		known[ep.Addr()] = ep
	}
	seen = make(map[string]bool, len(instances))
	for _, in := range instances {
		if _, twice := seen[in.Addr]; twice {
			continue
		}
		seen[in.Addr] = in.State != inactive
		if in.State == inactive {
			continue
		}
		ep := known[in.Addr]
		if ep == nil {
			ep = newEndpoint(cl.client, in)
		} else {
			ep.instance.Store(&in)
			ep.unlisted.Store(false)
			ep.stranger.Store(false)
		}
		endpoints = append(endpoints, ep)
	}
	cl.inactive = len(seen) - len(endpoints)
	return endpoints, seen
}

// doubtfulLocked reports whether a set of this size is so much smaller than another one lately that
// the registry may have lost its memory, or have been cut off from the servers. If one was doubted
// just now, the registry may be learning again, server by server, and is doubted until it knows as
// many as before.
func (cl *cluster) doubtfulLocked(size int, doubted bool) bool {
	now := time.Now()
	if now.Sub(cl.peakAt) > peakTime {
		cl.peak, cl.peakAt = cl.size, now
	}
	if size*2 < cl.peak || doubted && cl.implausible && size < cl.peak {
		return true
	}
	cl.size = size
	if size >= cl.peak {
		cl.peak, cl.peakAt = size, now
	}
	return false
}

// partLocked divides endpoints into those that stay and unlisted ones that leave now.
func (cl *cluster) partLocked(endpoints []*Endpoint, now time.Time) (stay, leave []*Endpoint) {
	var named []*Endpoint
	answers := false // one of those that the resolver names
	for _, ep := range endpoints {
		if !ep.unlisted.Load() {
			named = append(named, ep)
			answers = answers || ep.Connected()
		}
	}
	if len(named) == len(endpoints) {
		return endpoints, nil
	}
	var at time.Time // of which replaced is known
	replaced := false
	for _, ep := range endpoints {
		if ep.unlisted.Load() {
			if !ep.left.Equal(at) {
				at, replaced = ep.left, replacedSince(named, ep.left)
			}
			if ep.silent(now) || answers && (now.Sub(ep.left) >= leaveTime || replaced && !cl.implausible) {
				leave = append(leave, ep)
				continue
			}
		}
		stay = append(stay, ep)
	}
	return stay, leave
}

// silent reports whether an unlisted endpoint does not answer: another server listens at its
// address, or there has been no connection for leaveTime although attempts were made.
func (ep *Endpoint) silent(now time.Time) bool {
	lost := ep.lostAt.Load()
	return ep.stranger.Load() || lost != 0 && now.Sub(time.Unix(0, lost)) > leaveTime && now.Sub(ep.left) > leaveTime
}

// replacedSince reports whether at least half of the endpoints that the resolver has named since
// then were connected to.
func replacedSince(named []*Endpoint, then time.Time) bool {
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

// settle drops the unlisted endpoints that may leave by now.
func (cl *cluster) settle() {
	if cl.dropped() {
		cl.rebuildSoon()
	}
}

// dropped is the part of settle that decides. It reports whether an endpoint leaves.
func (cl *cluster) dropped() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.closed {
		return false
	}
	now := time.Now()
	stay, leave := cl.partLocked(cl.listed, now)
	if len(leave) > 0 {
		cl.listLocked(stay, leave)
		if cl.leaving.Load() == 0 && cl.implausible { // the resolver was right
			cl.size, cl.peak, cl.implausible = len(stay), len(stay), false
		}
	}
	cl.probeLocked(now)
	return len(leave) > 0
}

// probeLocked has endpoints that the resolver names dialled, while others wait for them to answer,
// and looks at those again when their time has passed.
func (cl *cluster) probeLocked(now time.Time) {
	if cl.leaving.Load() == 0 {
		return
	}
	var next time.Duration
	for _, ep := range cl.listed {
		if !ep.unlisted.Load() {
			if ep.offline() && !ep.busy.Load() && cl.dials.Load() < readyAtOnce {
				ep.dialQuietly()
			}
		} else if left := leaveTime - now.Sub(ep.left); left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	if next > 0 && !cl.settling {
		cl.settling = true
		time.AfterFunc(next, func() {
			cl.mu.Lock()
			cl.settling = false
			cl.mu.Unlock()
			cl.settle()
		})
	}
}
