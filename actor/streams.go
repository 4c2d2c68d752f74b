// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"slices"
	"strings"
	"time"
	"weak"

	"github.com/yodel-rpc/yodel"
)

// This file bounds what an actor remembers of the streams of messages to it. A System sends its
// messages to an actor in one stream. After a long pause it begins a new stream. A client can begin
// streams under any names. If it begins too many, the actor forgets streams of this client first.

// The bounds of what an actor remembers of streams.
const (
	// manyStreams is the number from which the actor looks for streams that are old.
	manyStreams = 64
	// maxStreams is how many streams an actor remembers.
	maxStreams = 1 << 16
	// maxOfConn is how many streams of one connection an actor remembers. Clients of yodel use one;
	// a proxy may join the connections of several.
	maxOfConn = 256
	// keepStream is how long an actor remembers a stream that is not used.
	keepStream = 10 * time.Minute
)

// streams is the streams of messages to one actor. The lock of the actor guards it.
type streams struct {
	named map[string]*inflow
	conns map[weak.Pointer[yodel.Peer]]*origin // each has streams
}

func newStreams() *streams {
	return &streams{named: make(map[string]*inflow), conns: make(map[weak.Pointer[yodel.Peer]]*origin)}
}

// all returns the streams by their names. S may be nil.
func (s *streams) all() map[string]*inflow {
	if s == nil {
		return nil
	}
	return s.named
}

// An origin is the streams of one connection to one actor. A stream belongs to the connection on
// which its last message came.
type origin struct {
	// peer does not keep the memory of the connection when that has ended.
	peer           weak.Pointer[yodel.Peer]
	newest, oldest *inflow // by their last messages
	n              int
}

// ended reports whether the connection has ended.
func (o *origin) ended() bool {
	peer := o.peer.Value()
	if peer == nil {
		return true
	}
	select {
	case <-peer.Done():
		return true
	default:
		return false
	}
}

// add makes f the newest stream of the connection.
func (o *origin) add(f *inflow) {
	f.origin, f.newer, f.older = o, nil, o.newest
	if o.newest == nil {
		o.oldest = f
	} else {
		o.newest.newer = f
	}
	o.newest = f
	o.n++
}

// remove takes f out of the streams of the connection.
func (o *origin) remove(f *inflow) {
	if f.newer == nil {
		o.newest = f.older
	} else {
		f.newer.older = f.older
	}
	if f.older == nil {
		o.oldest = f.newer
	} else {
		f.older.newer = f.newer
	}
	o.n--
}

// of returns the stream of a message that came from peer, and notes that it is used. It returns nil
// if there are too many streams. Peer may be nil.
func (s *streams) of(o order, peer *yodel.Peer, now time.Time) *inflow {
	f := s.named[o.stream]
	switch {
	case f == nil:
		if f = s.begin(o, peer, now); f == nil {
			return nil
		}
	case f.origin.peer.Value() != peer: // its sender has connected again
		from := s.originOf(peer)
		if !s.makeRoom(from) {
			return nil
		}
		s.leave(f)
		s.conns[from.peer] = from
		from.add(f)
	case f != f.origin.newest:
		f.origin.remove(f)
		f.origin.add(f)
	}
	f.used = now
	return f
}

// begin begins a stream. It returns nil if there is no room for it.
func (s *streams) begin(o order, peer *yodel.Peer, now time.Time) *inflow {
	if n := len(s.named); n >= manyStreams && n&(n-1) == 0 { // not for each new stream
		s.forgetOld(now)
	}
	from := s.originOf(peer)
	if !s.makeRoom(from) || len(s.named) >= maxStreams && !s.forgetHalf() {
		return nil
	}
	f := &inflow{name: strings.Clone(o.stream), next: o.floor}
	s.named[f.name], s.conns[from.peer] = f, from
	from.add(f)
	return f
}

// originOf returns the origin of the streams of a connection, which may be new.
func (s *streams) originOf(peer *yodel.Peer) *origin {
	key := weak.Make(peer)
	if o := s.conns[key]; o != nil {
		return o
	}
	return &origin{peer: key}
}

// makeRoom reports whether a connection may have one more stream. If it has as many as it may have,
// makeRoom forgets the one that was not used for the longest time.
func (s *streams) makeRoom(from *origin) bool {
	if from.n < maxOfConn {
		return true
	}
	for f := from.oldest; f != nil; f = f.newer {
		if f.isIdle() {
			s.forget(f)
			return true
		}
	}
	return false
}

// isIdle reports whether no message of the stream waits, neither to be handled nor to be answered.
func (f *inflow) isIdle() bool { return f.open.Load() == 0 && len(f.held) == 0 }

// forget forgets a stream.
func (s *streams) forget(f *inflow) {
	delete(s.named, f.name)
	s.leave(f)
}

// leave takes a stream from its connection.
func (s *streams) leave(f *inflow) {
	if f.origin.remove(f); f.origin.n == 0 {
		delete(s.conns, f.origin.peer)
	}
}

// forgetOld forgets streams that were not used for keepStream.
func (s *streams) forgetOld(now time.Time) {
	for _, f := range s.named {
		if f.isIdle() && now.Sub(f.used) > keepStream {
			s.forget(f)
		}
	}
}

// forgetHalf forgets half of the idle streams, namely those that were not used for the longest
// time. It leaves to each connection that has not ended the stream that this has used last, so that
// clients with many streams cannot take that of a client with one. It reports whether it has
// forgotten any.
func (s *streams) forgetHalf() bool {
	var idle []*inflow
	for _, from := range s.conns {
		first := from.newest
		if !from.ended() {
			first = first.older
		}
		for f := first; f != nil; f = f.older {
			if f.isIdle() {
				idle = append(idle, f)
			}
		}
	}
	slices.SortFunc(idle, func(a, b *inflow) int { return a.used.Compare(b.used) })
	idle = idle[:(len(idle)+1)/2]
	for _, f := range idle {
		s.forget(f)
	}
	return len(idle) > 0
}
