// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"sync"

	"github.com/yodel-rpc/yodel/internal/memory"
)

// This file bounds the memory of the messages in all inboxes of a System. A message is counted
// before its inbox accepts it. While there is no memory for it, its sender waits as for room in the
// inbox, and the message counts as a call of the connection on which it came. The actor handles
// such a message in its turn all the same, so an actor that is not full never waits for others.

// fixedCost is how many bytes a message takes in addition to its body: its call with the context
// and the metadata, and its envelope.
const fixedCost = 4 << 10

// An accounts counts the memory of the messages in the inboxes of a System, by sender. A sender
// gets at most as much memory as remains free, so that it cannot take that of the others: see
// memory.Limit. The senders are the connections, the actors of the System, and the rest of its
// program.
type accounts struct {
	limit *memory.Limit
	half  int

	mu    sync.Mutex
	held  map[any]int        // bytes by sender: a *yodel.Peer, a *cell or a *System
	short map[*cell]struct{} // actors whose inboxes have messages that wait for memory
}

func newAccounts(size int) *accounts {
	return &accounts{limit: memory.NewLimit(size), half: size / 2, held: make(map[any]int), short: make(map[*cell]struct{})}
}

// take counts a message for the inbox of an actor, and reports whether there is memory for it. If
// not, the actor is among those that a later give returns.
func (a *accounts) take(e *envelope) bool {
	if e.cost == 0 {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	held := a.held[e.sender] + e.cost
	if !a.limit.TakeFor(e.cost, held) {
		a.short[e.cell] = struct{}{}
		return false
	}
	a.held[e.sender] = held
	return true
}

// give uncounts a message. When at least half of the memory is free, give returns the actors whose
// inboxes have messages that wait for memory. Until then their senders wait, because to look for
// memory after each message would take long if there are many of these actors.
func (a *accounts) give(e *envelope) (short map[*cell]struct{}) {
	if e.cost == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limit.Give(e.cost)
	if a.held[e.sender] -= e.cost; a.held[e.sender] == 0 {
		delete(a.held, e.sender)
	}
	if len(a.short) == 0 || a.limit.Used() > a.half {
		return nil
	}
	short = a.short
	a.short = make(map[*cell]struct{})
	return short
}

// An admission lets inboxes accept messages that have waited for memory.
type admission map[*cell]struct{}

func (a admission) work() {
	for c := range a {
		c.mu.Lock()
		c.admitLocked()
		c.mu.Unlock()
	}
}

// costOf returns how much memory a message takes in an inbox. A question of another process takes
// none, because it counts as an open call of its connection until it is answered.
func (e *envelope) costOf() int {
	switch {
	case e.local != nil:
		return fixedCost + e.local.size
	case e.kind == question:
		return 0
	}
	body, err := e.call.Body() // if it was compressed, withoutAnswer has decompressed it
	if err != nil {
		return fixedCost
	}
	return fixedCost + len(body) + len(e.call.Attachment)
}

// senderOf returns the sender to whom a message counts.
func (e *envelope) senderOf() any {
	if e.local == nil {
		return e.call.Peer()
	}
	if e.local.by != nil {
		return e.local.by
	}
	return e.cell.system
}
