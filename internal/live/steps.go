// SPDX-License-Identifier: Apache-2.0

package live

import "encoding/binary"

// The numbers of one step of all series are kept encoded, because most of them are zero. A record
// has the number of a series, how many of its numbers are not zero, and for each of these its index
// and the number itself. All are varints. The records are in the order of the series.

// appendRecord appends the record of a step of a series.
func appendRecord(dst []byte, id int, s *Step) []byte {
	n := 0
	for _, v := range s {
		if v != 0 {
			n++
		}
	}
	dst = binary.AppendUvarint(dst, uint64(id))
	dst = binary.AppendUvarint(dst, uint64(n))
	for i, v := range s {
		if v != 0 {
			dst = binary.AppendUvarint(dst, uint64(i))
			dst = binary.AppendUvarint(dst, v)
		}
	}
	return dst
}

// A cursor reads records.
type cursor struct {
	rest []byte
	id   int // of the next record; past after the last one
}

const past = int(^uint(0) >> 1)

func newCursor(records []byte) cursor {
	c := cursor{rest: records}
	c.next()
	return c
}

func (c *cursor) number() int {
	v, n := binary.Uvarint(c.rest)
	c.rest = c.rest[n:]
	return int(v) //nolint:gosec // appendRecord wrote it
}

// next reads the number of the next series.
func (c *cursor) next() {
	if len(c.rest) == 0 {
		c.id = past
		return
	}
	c.id = c.number()
}

// add adds the numbers of the current record to s, and goes to the next record.
func (c *cursor) add(s *Step) {
	for range c.number() {
		i := c.number()
		s[i] += uint64(c.number())
	}
	c.next()
}

// merge adds several steps, and calls f for each series that has a record in one of them.
func merge(steps [][]byte, f func(id int, s *Step)) {
	cursors := make([]cursor, 0, len(steps))
	for _, records := range steps {
		if len(records) > 0 {
			cursors = append(cursors, newCursor(records))
		}
	}
	for {
		id := past
		for i := range cursors {
			id = min(id, cursors[i].id)
		}
		if id == past {
			return
		}
		var s Step
		for i := range cursors {
			if cursors[i].id == id {
				cursors[i].add(&s)
			}
		}
		f(id, &s)
	}
}
