// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// This file keeps messages in order. A server runs the calls of a connection at the same time, a
// call may be sent again over another connection, and some calls never arrive. So the sender
// numbers its messages to an actor. The receiver handles them by number, and waits for a number
// that is missing until it arrives, or until a later message says that it is lost. A number that
// arrives after a later one was handled is refused.

// An outbox numbers the messages of this System to one actor.
type outbox struct {
	stream string        // unique
	window chan struct{} // a token for each message of Send that the actor has not accepted

	mu      sync.Mutex
	last    uint64  // the number of the last message
	oldest  *letter // of those whose calls have not ended, which are a list
	newest  *letter
	lost    []span    // numbers for which the receiver may wait in vain
	doubt   time.Time // until then, a lost message may arrive
	retired bool      // the System has forgotten it
}

// A span is the numbers from first to last.
type span struct{ first, last uint64 }

// maxSpans is how many spans of lost numbers are sent with a message. The oldest ones are joined to
// stay within it. Messages between them that were not handled yet are then lost too: their callers
// get an error.
const maxSpans = 16

func newOutbox(stream string, window int) *outbox {
	return &outbox{stream: stream, window: make(chan struct{}, window)}
}

// add gives m the next number, and writes its order to the metadata that begins with way. It
// reports false if the outbox is retired: then the System has another one.
func (o *outbox) add(m *letter, way []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.retired {
		return false
	}
	o.last++
	m.number = o.last
	if m.older = o.newest; m.older == nil {
		o.oldest = m
	} else {
		m.older.newer = m
	}
	o.newest = m
	m.says = len(way)
	m.call.Metadata[keyWay] = string(o.appendOrderLocked(way, m.number))
	m.told = len(o.lost) > 0
	return true
}

// appendOrderLocked appends the order of the message n: the stream, n, the first number that may
// still arrive, and the lost spans.
func (o *outbox) appendOrderLocked(b []byte, n uint64) []byte {
	floor := o.last + 1
	if o.oldest != nil {
		floor = o.oldest.number
	}
	b = append(b, o.stream...)
	b = strconv.AppendUint(append(b, ' '), n, 10)
	b = strconv.AppendUint(append(b, ' '), floor, 10)
	for _, s := range o.lost {
		b = strconv.AppendUint(append(b, ' '), s.first, 10)
		b = strconv.AppendUint(append(b, '-'), s.last, 10)
	}
	return b
}

// ended says how the call of a message has ended. If later messages may wait for it in vain, ended
// returns what the receiver has to know.
func (o *outbox) ended(m *letter, err error) (order string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m.older == nil {
		o.oldest = m.newer
	} else {
		m.older.newer = m.newer
	}
	if m.newer == nil {
		o.newest = m.older
	} else {
		m.newer.older = m.older
	}
	m.older, m.newer = nil, nil
	if err == nil {
		if m.told { // the receiver knows the spans that were sent
			sent, _ := parseOrder(m.call.Metadata[keyWay][m.says:])
			o.lost = slices.DeleteFunc(o.lost, func(s span) bool { return slices.Contains(sent.lost, s) })
		}
		return ""
	}
	if mayArrive(err) && o.doubt.Before(m.until) {
		o.doubt = m.until
	}
	o.lost = addSpan(o.lost, span{m.number, m.number})
	if len(o.lost) > maxSpans {
		o.lost = slices.Replace(o.lost, 0, 2, span{o.lost[0].first, o.lost[1].last})
	}
	if o.newest == nil || o.newest.number < m.number {
		return "" // the next message has it
	}
	return string(o.appendOrderLocked(nil, 0))
}

// mayArrive reports whether a message whose call has ended with err may still arrive, for example
// because its connection was lost.
func mayArrive(err error) bool {
	var e *yodel.Error
	if errors.As(err, &e) && e.NotProcessed {
		return false
	}
	switch yodel.CodeOf(err) {
	case yodel.NotFound, yodel.Unimplemented: // there is no such actor
		return false
	default:
		return true
	}
}

// retire reports whether the outbox may be forgotten, and makes it unusable then. The next message
// to the actor begins a new stream, so no message of the old one may arrive after it.
func (o *outbox) retire(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.retired = o.oldest == nil && now.After(o.doubt)
	return o.retired
}

// addSpan adds s to spans, which are sorted and neither overlap nor touch.
func addSpan(spans []span, s span) []span {
	i, _ := slices.BinarySearchFunc(spans, s, func(a, b span) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	if i > 0 && spans[i-1].last+1 >= s.first {
		i--
		s.first, s.last = spans[i].first, max(spans[i].last, s.last)
		spans = slices.Delete(spans, i, i+1)
	}
	for i < len(spans) && spans[i].first <= s.last+1 {
		s.last = max(s.last, spans[i].last)
		spans = slices.Delete(spans, i, i+1)
	}
	return slices.Insert(spans, i, s)
}

// An order is what a message says of its place among the messages of one System to one actor.
type order struct {
	stream string
	n      uint64 // 0 if only lost numbers are told
	floor  uint64 // the first number that may still arrive
	lost   []span // later numbers that will not
}

// parseOrder reads what appendOrderLocked has written.
func parseOrder(says string) (o order, err error) {
	var number, floor string
	o.stream, says, _ = strings.Cut(says, " ")
	number, says, _ = strings.Cut(says, " ")
	floor, says, _ = strings.Cut(says, " ")
	if o.stream == "" || len(o.stream) > maxName {
		return o, errOrder
	}
	var err2 error
	if o.n, err = strconv.ParseUint(number, 10, 62); err == nil {
		o.floor, err = strconv.ParseUint(floor, 10, 62)
	}
	for says != "" && err == nil {
		var part string
		part, says, _ = strings.Cut(says, " ")
		first, last, _ := strings.Cut(part, "-")
		var s span
		s.first, err = strconv.ParseUint(first, 10, 62)
		if s.last, err2 = strconv.ParseUint(last, 10, 62); err2 != nil || s.first > s.last || len(o.lost) == maxSpans {
			return o, errOrder
		}
		o.lost = append(o.lost, s)
	}
	return o, err
}

var errOrder = errors.New("no order of messages")

// An inflow is the messages of one stream to one actor. The lock of the actor guards it.
type inflow struct {
	next uint64               // the number that is handled next
	held map[uint64]*envelope // by numbers after next
	lost []span               // numbers after next that will not arrive
	open atomic.Int64         // questions that are not answered
	used time.Time

	name         string
	origin       *origin // the connection of the last message
	newer, older *inflow // of the origin
}

// maxHeld is how many messages of a stream may wait for earlier ones.
const maxHeld = 16 << 10

// maxLost is how many spans of lost numbers after next the receiver remembers.
const maxLost = 1 << 10

// isNext reports whether the message with the order o is the next one, and no other one waits.
func (f *inflow) isNext(o order) bool {
	return o.n == f.next && o.floor <= f.next && len(o.lost) == 0 && len(f.lost) == 0 && len(f.held) == 0
}

// hold keeps a message until the earlier ones have come.
func (f *inflow) hold(o order, e *envelope) error {
	switch was := f.held[o.n]; {
	case o.n < f.next:
		return yodel.Errorf(yodel.Aborted, "actor: the message arrived after a later one, and was not handled")
	case was != nil: // another attempt of the call
		was.conclude(nil, yodel.Errorf(yodel.Aborted, "actor: the message has arrived again"))
	case len(f.held) >= maxHeld:
		return yodel.Errorf(yodel.ResourceExhausted, "actor: %d messages wait for earlier ones", len(f.held))
	}
	if f.held == nil {
		f.held = make(map[uint64]*envelope)
	}
	f.held[o.n] = e
	return nil
}

// ready notes the lost numbers of o. It returns and forgets the messages that are next.
func (f *inflow) ready(o order) (ready []*envelope) {
	for _, s := range o.lost {
		if s.last >= f.next && len(f.lost) < maxLost {
			f.lost = addSpan(f.lost, s)
		}
	}
	if o.floor > f.next {
		f.lost = addSpan(f.lost, span{f.next, o.floor - 1})
	}
	for {
		if e := f.held[f.next]; e != nil {
			delete(f.held, f.next)
			ready = append(ready, e)
			f.next++
			continue
		}
		if len(f.lost) == 0 || f.lost[0].first > f.next {
			return ready
		}
		last := f.lost[0].last
		f.lost = slices.Delete(f.lost, 0, 1)
		if last < f.next {
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(f.held)) {
			if n <= last {
				ready = append(ready, f.held[n])
				delete(f.held, n)
			}
		}
		f.next = last + 1
	}
}

// leave removes message n, which waits for earlier messages. Its caller has gone, so the message is
// lost.
func (f *inflow) leave(n uint64) (ready []*envelope) {
	delete(f.held, n)
	return f.ready(order{lost: []span{{n, n}}})
}
