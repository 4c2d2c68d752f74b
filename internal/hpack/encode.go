// SPDX-License-Identifier: Apache-2.0

package hpack

import "sync"

// An Encoder encodes the blocks of one direction of a connection. The zero value is ready for a
// peer that allows DefaultTableSize. It must not be used concurrently, and the blocks have to be
// sent in the order in which they were encoded.
type Encoder struct {
	table  table[struct{}]
	begun  bool // table.most is set
	resize bool // the next block begins with the sizes of the table
	lowest int  // the smallest of these
}

// SetTableSize sets the largest size of the table that the peer allows
// (SETTINGS_HEADER_TABLE_SIZE). The Encoder uses DefaultTableSize at most. SetTableSize must not be
// called within a block.
func (e *Encoder) SetTableSize(size int) {
	e.begin()
	if size = min(size, DefaultTableSize); size == e.table.most && !e.resize {
		return
	}
	if !e.resize {
		e.lowest = size
	}
	e.resize, e.lowest = true, min(e.lowest, size)
	e.table.setMost(size)
}

func (e *Encoder) begin() {
	if !e.begun {
		e.begun, e.table.most = true, DefaultTableSize
	}
}

// Append appends a field that stays out of the table to a block. The name has to be in lower case,
// in all three functions. They write no Huffman code.
func (e *Encoder) Append(block []byte, name, value string) []byte {
	block = e.appendSizes(block)
	index, whole := staticIndex(name, value)
	if whole {
		return appendNumber(block, 0x80, 7, index)
	}
	return appendLiteral(block, 0, 4, index, name, value)
}

// AppendRepeated appends a field that later blocks will have, too: it enters the table.
func (e *Encoder) AppendRepeated(block []byte, name, value string) []byte {
	block = e.appendSizes(block)
	index, whole := staticIndex(name, value)
	if whole {
		return appendNumber(block, 0x80, 7, index)
	}
	for i := range e.table.n {
		if f := e.table.get(i); f.name == name && f.value == value {
			return appendNumber(block, 0x80, 7, len(static)+i)
		}
	}
	e.table.add(name, value)
	return appendLiteral(block, 0x40, 6, index, name, value)
}

// AppendSecret appends a field that whoever passes the block on must keep out of tables, too (RFC
// 7541, section 7.1.3).
func (e *Encoder) AppendSecret(block []byte, name, value string) []byte {
	index, _ := staticIndex(name, "")
	return appendLiteral(e.appendSizes(block), 0x10, 4, index, name, value)
}

// appendSizes begins a block with the sizes that the table has got since the last one (RFC 7541,
// section 4.2).
func (e *Encoder) appendSizes(block []byte) []byte {
	e.begin()
	if !e.resize {
		return block
	}
	e.resize = false
	if e.lowest < e.table.most {
		block = appendNumber(block, 0x20, 5, e.lowest)
	}
	return appendNumber(block, 0x20, 5, e.table.most)
}

// appendLiteral appends a field with its value. The name has an index of this many bits, or
// follows.
func appendLiteral(block []byte, first byte, bits, index int, name, value string) []byte {
	block = appendNumber(block, first, bits, index)
	if index == 0 {
		block = append(appendNumber(block, 0, 7, len(name)), name...)
	}
	return append(appendNumber(block, 0, 7, len(value)), value...)
}

// staticNames has the lowest index of each name in the static table, where those of one name are
// side by side.
var staticNames = sync.OnceValue(func() map[string]int {
	names := make(map[string]int, len(static))
	for i := len(static) - 1; i > 0; i-- {
		names[static[i].name] = i
	}
	return names
})

// staticIndex returns the index of a field in the static table, and whether the value is there as
// well. If only the name is there, it returns the name's index, and zero if it is not.
func staticIndex(name, value string) (index int, whole bool) {
	index = staticNames()[name]
	for i := index; i > 0 && i < len(static) && static[i].name == name; i++ {
		if static[i].value == value {
			return i, true
		}
	}
	return index, false
}

// appendNumber appends a number that begins within a byte that already has its highest bits (RFC
// 7541, section 5.1).
func appendNumber(dst []byte, first byte, bits, n int) []byte {
	highest := 1<<bits - 1
	if n < highest {
		return append(dst, first|byte(n)) //nolint:gosec // it is less than highest
	}
	dst = append(dst, first|byte(highest)) //nolint:gosec // of at most 7 bits
	for n -= highest; n >= 0x80; n >>= 7 {
		dst = append(dst, byte(n)|0x80)
	}
	return append(dst, byte(n)) //nolint:gosec // the loop has left at most 7 bits
}
