// SPDX-License-Identifier: Apache-2.0

package h2

import "slices"

// A state is the state of a stream (RFC 9113, section 5.1). This side pushes nothing, so no stream
// is reserved. When this side has sent END_STREAM before the client has, it resets the stream, so
// no stream stays half closed on this side.
type state uint8

const (
	idle        state = iota // the client has not used the number yet
	open                     // both sides may send
	requestDone              // half closed (remote): the client has sent END_STREAM
	closed                   // both sides have sent END_STREAM, or one has sent RST_STREAM
)

// An event changes the state of a stream.
type event uint8

const (
	beginsOpen  event = iota // HEADERS without END_STREAM
	beginsWhole              // HEADERS with END_STREAM
	requestEnds              // END_STREAM of the client
	replyEnds                // END_STREAM of this side
	isReset                  // RST_STREAM of any side
)

// after is the state after an event. An event that cannot happen in a state leaves it.
var after = [...][5]state{
	idle:        {beginsOpen: open, beginsWhole: requestDone, requestEnds: idle, replyEnds: idle, isReset: idle},
	open:        {beginsOpen: open, beginsWhole: open, requestEnds: requestDone, replyEnds: closed, isReset: closed},
	requestDone: {beginsOpen: requestDone, beginsWhole: requestDone, requestEnds: requestDone, replyEnds: closed, isReset: closed},
	closed:      {beginsOpen: closed, beginsWhole: closed, requestEnds: closed, replyEnds: closed, isReset: closed},
}

func (s state) on(e event) state { return after[s][e] }

// recentIDs remembers the newest streams that this side has ended while the client could still
// send. DATA that was on its way is not an error then.
type recentIDs struct {
	ids  []uint32
	next int
}

const mostRecent = 1024

func (r *recentIDs) add(id uint32) {
	if len(r.ids) < mostRecent {
		r.ids = append(r.ids, id)
		return
	}
	r.ids[r.next] = id
	r.next = (r.next + 1) % mostRecent
}

func (r *recentIDs) has(id uint32) bool { return slices.Contains(r.ids, id) }
