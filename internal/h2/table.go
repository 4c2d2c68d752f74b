// SPDX-License-Identifier: Apache-2.0

package h2

// A table has the streams of a connection that are open, or whose handlers run. A client uses one
// number after the other, so a stream is in the slot of its number unless an older one is still
// there.
type table struct {
	slots []*Stream          // as many as a power of two
	rest  map[uint32]*Stream // streams whose slots were taken
	n     int
}

// fewestSlots and mostSlots bound the slots. Streams beyond them are in the map.
const fewestSlots, mostSlots = 16, 4096

func (t *table) slot(id uint32) int { return int(id>>1) & (len(t.slots) - 1) }

func (t *table) get(id uint32) *Stream {
	if t.n == 0 {
		return nil
	}
	if s := t.slots[t.slot(id)]; s != nil && s.id == id {
		return s
	}
	return t.rest[id]
}

func (t *table) put(s *Stream) {
	if t.n >= len(t.slots) && len(t.slots) < mostSlots {
		t.grow()
	}
	t.n++
	t.place(s)
}

func (t *table) place(s *Stream) {
	at := &t.slots[t.slot(s.id)]
	if *at == nil {
		*at = s
		return
	}
	if t.rest == nil {
		t.rest = make(map[uint32]*Stream)
	}
	t.rest[s.id] = s
}

func (t *table) remove(s *Stream) {
	t.n--
	if at := &t.slots[t.slot(s.id)]; *at == s {
		*at = nil
		return
	}
	delete(t.rest, s.id)
}

func (t *table) grow() {
	old := *t
	t.slots, t.rest = make([]*Stream, max(fewestSlots, 2*len(old.slots))), nil
	for s := range old.all {
		t.place(s)
	}
}

// all ranges over the streams. The loop may remove the stream that it is at.
func (t *table) all(yield func(*Stream) bool) {
	for _, s := range t.slots {
		if s != nil && !yield(s) {
			return
		}
	}
	for _, s := range t.rest {
		if !yield(s) {
			return
		}
	}
}
