// SPDX-License-Identifier: Apache-2.0

// Package gencode has the messages with the methods that gencode (github.com/andyleap/gencode)
// makes, in its format. The generator is gone, so they are written by hand, a loop where it would
// repeat itself:
//
//	struct Args { A vint64  B vint64 }
//	struct Reply { C vint64 }
//	struct BenchmarkMessage { /* the strings */ /* the bools */ /* the int32s */ Field22 int64  Field5 []uint64 }
package gencode

import (
	"encoding/binary"

	"github.com/yodel-rpc/yodel/bench/codecs/plain"
	"github.com/yodel-rpc/yodel/bench/peer"
)

// Args is what is multiplied.
type Args plain.Args

// Reply is the product.
type Reply plain.Reply

// BenchmarkMessage is the message that RPC frameworks have been compared with since 2016.
type BenchmarkMessage peer.PlainMessage

func varintSize(t uint64) (n uint64) {
	for n = 1; t >= 0x80; n++ {
		t >>= 7
	}
	return n
}

func zigzag(n int64) uint64 { return uint64(n<<1) ^ uint64(n>>63) }

func putVarint(buf []byte, i, t uint64) uint64 {
	for ; t >= 0x80; i++ {
		buf[i] = byte(t) | 0x80
		t >>= 7
	}
	buf[i] = byte(t)
	return i + 1
}

func getVarint(buf []byte, i uint64) (t, next uint64) {
	for bits := 0; ; bits += 7 {
		t |= uint64(buf[i]&0x7f) << bits
		i++
		if buf[i-1] < 0x80 {
			return t, i
		}
	}
}

func getSigned(buf []byte, i uint64) (n int, next uint64) {
	t, i := getVarint(buf, i)
	return int(int64(t>>1) ^ -int64(t&1)), i
}

func room(buf []byte, size uint64) []byte {
	if uint64(cap(buf)) >= size {
		return buf[:size]
	}
	return make([]byte, size)
}

func (d *Args) Size() uint64 {
	return varintSize(zigzag(int64(d.A))) + varintSize(zigzag(int64(d.B)))
}

func (d *Args) Marshal(buf []byte) ([]byte, error) {
	buf = room(buf, d.Size())
	i := putVarint(buf, 0, zigzag(int64(d.A)))
	return buf[:putVarint(buf, i, zigzag(int64(d.B)))], nil
}

func (d *Args) Unmarshal(buf []byte) (uint64, error) {
	var i uint64
	d.A, i = getSigned(buf, 0)
	d.B, i = getSigned(buf, i)
	return i, nil
}

func (d *Reply) Size() uint64 { return varintSize(zigzag(int64(d.C))) }

func (d *Reply) Marshal(buf []byte) ([]byte, error) {
	buf = room(buf, d.Size())
	return buf[:putVarint(buf, 0, zigzag(int64(d.C)))], nil
}

func (d *Reply) Unmarshal(buf []byte) (uint64, error) {
	var i uint64
	d.C, i = getSigned(buf, 0)
	return i, nil
}

func (d *BenchmarkMessage) strings() [8]*string {
	return [...]*string{&d.Field1, &d.Field9, &d.Field18, &d.Field4, &d.Field7, &d.Field102, &d.Field103, &d.Field129}
}

func (d *BenchmarkMessage) bools() [10]*bool {
	return [...]*bool{
		&d.Field80, &d.Field81, &d.Field59, &d.Field12, &d.Field17, &d.Field13, &d.Field14, &d.Field30, &d.Field24, &d.Field78,
	}
}

func (d *BenchmarkMessage) int32s() [20]*int32 {
	return [...]*int32{
		&d.Field2, &d.Field3, &d.Field280, &d.Field6, &d.Field16, &d.Field130, &d.Field104, &d.Field100, &d.Field101, &d.Field29,
		&d.Field60, &d.Field271, &d.Field272, &d.Field150, &d.Field23, &d.Field25, &d.Field67, &d.Field68, &d.Field128, &d.Field131,
	}
}

func (d *BenchmarkMessage) Size() uint64 {
	s := 10 + 20*4 + 8 + varintSize(uint64(len(d.Field5))) + 8*uint64(len(d.Field5))
	for _, text := range d.strings() {
		s += varintSize(uint64(len(*text))) + uint64(len(*text))
	}
	return s
}

func (d *BenchmarkMessage) Marshal(buf []byte) ([]byte, error) {
	buf = room(buf, d.Size())
	i := uint64(0)
	for _, text := range d.strings() {
		i = putVarint(buf, i, uint64(len(*text)))
		i += uint64(copy(buf[i:], *text))
	}
	for _, yes := range d.bools() {
		buf[i] = 0
		if *yes {
			buf[i] = 1
		}
		i++
	}
	for _, n := range d.int32s() {
		binary.LittleEndian.PutUint32(buf[i:], uint32(*n))
		i += 4
	}
	binary.LittleEndian.PutUint64(buf[i:], uint64(d.Field22))
	i = putVarint(buf, i+8, uint64(len(d.Field5)))
	for _, n := range d.Field5 {
		binary.LittleEndian.PutUint64(buf[i:], n)
		i += 8
	}
	return buf[:i], nil
}

func (d *BenchmarkMessage) Unmarshal(buf []byte) (uint64, error) {
	var i, n uint64
	for _, text := range d.strings() {
		n, i = getVarint(buf, i)
		*text = string(buf[i : i+n])
		i += n
	}
	for _, yes := range d.bools() {
		*yes = buf[i] == 1
		i++
	}
	for _, number := range d.int32s() {
		*number = int32(binary.LittleEndian.Uint32(buf[i:]))
		i += 4
	}
	d.Field22 = int64(binary.LittleEndian.Uint64(buf[i:]))
	n, i = getVarint(buf, i+8)
	if n > uint64(len(buf))/8 {
		n = uint64(len(buf)) // too many: the bytes run out below
	}
	d.Field5 = d.Field5[:0]
	for range n {
		d.Field5 = append(d.Field5, binary.LittleEndian.Uint64(buf[i:]))
		i += 8
	}
	return i, nil
}
