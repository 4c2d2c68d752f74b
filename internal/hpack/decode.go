// SPDX-License-Identifier: Apache-2.0

// Package hpack encodes and decodes the header blocks of HTTP/2 (RFC 7541). A block depends on the
// blocks before it in the same direction of a connection, so each direction has one Decoder and one
// Encoder, and blocks are encoded in the order in which they are sent.
package hpack

import "errors"

// ErrMalformed is the error of a block that is not one of RFC 7541. The tables of the two sides
// differ then, and the connection has to end (COMPRESSION_ERROR).
var ErrMalformed = errors.New("a header block is malformed")

// A Decoder decodes the blocks of one direction of a connection. M is what the caller makes of a
// field, for example the method that a path names: the Decoder keeps it with the field as long as
// the field is in the table. The zero value is ready for a peer that uses DefaultTableSize at most.
// It must not be used concurrently.
type Decoder[M any] struct {
	table table[M]
	begun bool // table.most is set
}

// Decode decodes a whole block and passes its fields to give, in order. The strings stay valid.
// meaning points to the zero value of M when the field is new in the table, and to what give left
// there before when the block repeats the field. It is nil if the field is not in the table, and it
// must not be kept. If give returns false, it gets no more fields of this block, and Decode goes on
// only for the table. The strings of a block take at most 1.6 times its bytes, because a repeated
// field shares its strings with the table: the caller bounds the bytes.
func (d *Decoder[M]) Decode(block []byte, give func(name, value string, meaning *M) bool) error {
	if !d.begun {
		d.begun, d.table.most = true, DefaultTableSize
	}
	p := parser{rest: block}
	wanted, fields := true, false
	for len(p.rest) > 0 && !p.failed {
		var name, value string
		var meaning *M
		switch first := p.rest[0]; {
		case first&0xe0 == 0x20: // a new size of the table
			size := p.number(5)
			if fields || size > DefaultTableSize {
				return ErrMalformed
			}
			d.table.setMost(size)
			continue
		case first&0x80 != 0: // a field of a table
			name, value, meaning = d.field(&p, p.number(7))
		case first&0x40 != 0: // a field that enters the table
			if name, value = d.literal(&p, 6); p.failed {
				return ErrMalformed
			}
			if e := d.table.add(name, value); e != nil {
				meaning = &e.meaning
			}
		default: // a field that does not
			name, value = d.literal(&p, 4)
		}
		fields = true
		wanted = wanted && !p.failed && give(name, value, meaning)
	}
	if p.failed {
		return ErrMalformed
	}
	return nil
}

// field returns the field that has this index in the static or in the dynamic table.
func (d *Decoder[M]) field(p *parser, index int) (name, value string, meaning *M) {
	switch {
	case index > 0 && index < len(static):
		return static[index].name, static[index].value, nil
	case index >= len(static) && index-len(static) < d.table.n:
		e := d.table.get(index - len(static))
		return e.name, e.value, &e.meaning
	}
	p.failed = true
	return "", "", nil
}

// literal reads a field whose value follows, and whose name either follows or has an index of this
// many bits.
func (d *Decoder[M]) literal(p *parser, bits int) (name, value string) {
	if index := p.number(bits); index > 0 {
		name, _, _ = d.field(p, index)
	} else {
		name = p.text()
	}
	return name, p.text()
}

// A parser reads a block. Once it has failed, what it returns means nothing.
type parser struct {
	rest   []byte
	failed bool
}

// mostNumber bounds what a number can be: more than any block is long.
const mostNumber = 1 << 28

// number reads a number that begins with this many bits of the first byte (RFC 7541, section 5.1).
func (p *parser) number(bits int) int {
	if len(p.rest) == 0 {
		p.failed = true
		return 0
	}
	highest := 1<<bits - 1
	n := int(p.rest[0]) & highest
	p.rest = p.rest[1:]
	if n < highest {
		return n
	}
	for shift := 0; len(p.rest) > 0 && shift < 28; shift += 7 {
		b := p.rest[0]
		p.rest = p.rest[1:]
		if n += int(b&0x7f) << shift; b < 0x80 {
			if n > mostNumber {
				break
			}
			return n
		}
	}
	p.failed = true
	return 0
}

// take returns the next n bytes.
func (p *parser) take(n int) []byte {
	if n > len(p.rest) {
		p.failed = true
		return nil
	}
	s := p.rest[:n]
	p.rest = p.rest[n:]
	return s
}

// text reads a string (RFC 7541, section 5.2).
func (p *parser) text() string {
	huffman := len(p.rest) > 0 && p.rest[0]&0x80 != 0
	s := p.take(p.number(7))
	if !huffman {
		return string(s)
	}
	var short [128]byte // most strings fit, and then nothing but the result is allocated
	decoded, ok := appendDecoded(short[:0], s)
	p.failed = p.failed || !ok
	return string(decoded)
}
