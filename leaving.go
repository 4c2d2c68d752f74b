// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"time"
)

// This file decides which endpoints a client has: those that the resolver reports, and earlier
// endpoints that the client keeps because the resolver may be wrong. docs/discovery.md describes
// the rule.

// leaveTime is how long the client keeps an endpoint that answers but that the resolver no longer
// reports, if reported endpoints answer too. It is also how long such an endpoint may be
// unreachable before the client drops it.
const leaveTime = 30 * time.Second

// peakTime is how long the client remembers the size of a set. If several servers die together,
// their leases end one by one. PeakTime is longer than the time in which all these leases end.
const peakTime = 2 * time.Minute

// update applies a set of instances from the resolver. Endpoints that are still in the set keep
// their connections and state.
func (cl *cluster) update(instances []Instance) {
	if cl.list(instances) {
		cl.source.list(context.Background(), cl.client, 0)
	}
	cl.rebuild()
}

// list is the part of update that decides which endpoints the client has. It reports whether there
// is no endpoint.
func (cl *cluster) list(instances []Instance) (none bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.closed {
		return false
	}
	back := cl.err != nil // the resolver works again
	cl.err, cl.errText, cl.heard = nil, "", clock()
	before := cl.listed
	endpoints, added, seen := cl.namedLocked(before, instances)
	cl.noteInstances(eventUp, added)
	doubted := false // an earlier set was doubtful, so there are unlisted endpoints
	var gone []*Endpoint
	now := time.Now()
	for _, ep := range before {
		addr := ep.Addr()
		active, named := seen[addr]
		switch {
		case active:
		// the record of the endpoint is inactive, or the endpoint is not known to have ever
		// answered
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
	cl.implausible = cl.doubtfulLocked(len(seen), back, doubted)
	endpoints, left := cl.partLocked(endpoints, now)
	cl.listLocked(endpoints, append(gone, left...))
	cl.probeLocked(now)
	return len(endpoints) == 0
}

// namedLocked returns the endpoints of the active instances. It reuses endpoints of the previous
// set. Added has those that are new. Seen has the addresses of all instances. It is true for the
// addresses of active instances.
func (cl *cluster) namedLocked(before []*Endpoint, instances []Instance) (endpoints, added []*Endpoint, seen map[string]bool) {
	known := make(map[string]*Endpoint, len(before))
	for _, ep := range before {
		known[ep.Addr()] = ep
	}
	seen = make(map[string]bool, len(instances))
	cl.unspoken = unspoken{}
	for _, in := range instances {
		if _, twice := seen[in.Addr]; twice {
			continue
		}
		seen[in.Addr] = in.State != inactive
		if in.State == inactive {
			continue
		}
		w, spoken := cl.client.wireFor(in.Protocols)
		if !spoken {
			seen[in.Addr] = false
			cl.unspoken.add(in.Protocols)
			continue
		}
		ep := known[in.Addr]
		if ep != nil && ep.protocol != w.name {
			cl.gone = append(cl.gone, ep)
			ep = nil
		}
		if ep == nil {
			ep = newEndpoint(cl.client, in, w)
			added = append(added, ep)
		} else {
			ep.instance.Store(&in)
			ep.unlisted.Store(false)
			ep.stranger.Store(false)
		}
		endpoints = append(endpoints, ep)
	}
	cl.inactive = len(seen) - len(endpoints) - cl.unspoken.instances
	return endpoints, added, seen
}

// doubtfulLocked reports whether a set of this size is doubtful. A set is doubtful if it has less
// than half the size of a recent set: the registry may have lost its data, or its connection to the
// servers. After a doubtful set, the following sets are doubtful until they have the old size,
// because the registry may be learning of the servers one by one. For that reason, a smaller set is
// also doubtful if the resolver is back after a failure.
func (cl *cluster) doubtfulLocked(size int, back, doubted bool) bool {
	now := time.Now()
	if now.Sub(cl.peakAt) > peakTime {
		cl.peak, cl.peakAt = cl.size, now
	}
	if size*2 < cl.peak || size < cl.peak && (back || doubted && cl.implausible) {
		return true
	}
	cl.size = size
	if size >= cl.peak {
		cl.peak, cl.peakAt = size, now
	}
	return false
}

// partLocked divides endpoints into those that the client keeps and those that leave now. Only
// endpoints that the resolver no longer reports leave.
func (cl *cluster) partLocked(endpoints []*Endpoint, now time.Time) (stay, leave []*Endpoint) {
	var named []*Endpoint
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
			if ep.silent(now) || answers && (now.Sub(ep.left) >= leaveTime || replaced && !cl.implausible) {
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
func (ep *Endpoint) silent(now time.Time) bool {
	lost := ep.lostAt.Load()
	return ep.stranger.Load() || lost != 0 && now.Sub(time.Unix(0, lost)) > leaveTime && now.Sub(ep.left) > leaveTime
}

// replacedSince considers the endpoints that the resolver has added after the time then. It reports
// whether at least half of them have been connected.
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

// settle drops the unlisted endpoints that may leave now.
func (cl *cluster) settle() {
	if cl.dropped() {
		cl.rebuildSoon()
	}
}

// dropped is the part of settle that decides which endpoints leave. It reports whether an endpoint
// leaves.
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
		if cl.leaving.Load() == 0 && cl.implausible { // no unlisted endpoint remains: the small set was correct
			cl.size, cl.peak, cl.implausible = len(stay), len(stay), false
		}
	}
	cl.probeLocked(now)
	return len(leave) > 0
}

// probeLocked dials endpoints that the resolver reports. Unlisted endpoints can leave only when
// reported endpoints answer. It also starts a timer that calls settle when leaveTime of the next
// endpoint has passed.
func (cl *cluster) probeLocked(now time.Time) {
	if cl.leaving.Load() == 0 {
		return
	}
	var next time.Duration
	for _, ep := range cl.listed {
		if !ep.unlisted.Load() {
			if !ep.Connected() && !ep.busy.Load() && cl.dials.Load() < readyAtOnce {
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
