// SPDX-License-Identifier: Apache-2.0

// Package numbers gives a number to each method that one side of a connection calls. This side
// announces the number to its peer before the first call. A later announcement replaces an earlier
// one of the same number, so a Table can give a number again.
package numbers

// A Table has the numbers of one connection. The zero value is ready. A lock of the owner guards
// it.
//
// The owner of the methods knows each of them by a handle and a generation: when a method is
// removed, the next new method gets its handle, with the next generation. A Table does not point to
// a method, which may be garbage long before the connection ends.
type Table struct {
	numbers  []uint16  // by handle; the binding of the number tells whether the handle still has it
	bindings []binding // by number
	next     uint16    // the next number
	given    uint32    // numbers ever given
}

// A binding identifies the method that a number stands for.
type binding struct {
	handle     int
	generation uint32
	id         uint32 // of the announcement
}

// Of returns the number of a method. It returns false if the method has none.
func (t *Table) Of(handle int, generation uint32) (number uint16, ok bool) {
	if handle >= len(t.numbers) {
		return 0, false
	}
	n := t.numbers[handle]
	if int(n) >= len(t.bindings) {
		return 0, false
	}
	b := &t.bindings[n]
	return n, b.handle == handle && b.generation == generation
}

// Give gives a method a number below the bound most, and returns the id of its announcement. The
// method takes over the number of an earlier method with its handle. When the numbers have run out,
// they are given again from 0 on.
func (t *Table) Give(handle int, generation uint32, most int) (number uint16, id uint32) {
	if more := handle + 1 - len(t.numbers); more > 0 {
		t.numbers = append(t.numbers, make([]uint16, more)...)
	}
	n := t.numbers[handle]
	if int(n) >= len(t.bindings) || t.bindings[n].handle != handle {
		if int(t.next) >= most {
			t.next = 0
		}
		n = t.next
		t.next++
		t.numbers[handle] = n
	}
	if int(n) == len(t.bindings) {
		t.bindings = append(t.bindings, binding{})
	}
	t.given++
	t.bindings[n] = binding{handle: handle, generation: generation, id: t.given}
	return n, t.given
}

// Method returns the method whose number was announced with an id. It returns false if the number
// now stands for another method.
func (t *Table) Method(number uint16, id uint32) (handle int, generation uint32, ok bool) {
	if int(number) >= len(t.bindings) || t.bindings[number].id != id {
		return 0, 0, false
	}
	b := &t.bindings[number]
	return b.handle, b.generation, true
}
