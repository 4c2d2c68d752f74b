// SPDX-License-Identifier: Apache-2.0

package hessian

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel/internal/room"
)

// A Reader reads the values of a stream. After an error, all of its methods return that error.
type Reader struct {
	// Reserve, if not nil, counts n bytes of memory before the Reader allocates them for its
	// tables, for Any and for the tables of Copy. The caller ends the reservations when it drops
	// the Reader and the values. If Reserve returns false, the reading ends with ErrMemory.
	Reserve func(n int) bool
	// Skims makes Skip and List keep nothing of what they read, so that they allocate nothing but
	// the number of fields of each class. It must be set before the first value, and may be cleared
	// once, for the values that follow. These cannot refer to skimmed classes, lists, maps and
	// objects. The names of skimmed types are empty for them.
	Skims bool

	bytes    []byte
	at       int
	seen     int       // all before it was read once: the tables have what is defined there
	room     room.Room // less what reading bytes again costs
	reserved int       // bytes that Reserve has counted and spend has not given out
	err      error

	classes []class
	types   []string
	objects []int // the offsets of the lists, maps and objects

	// These are for values that were read with Skims: the number of entries that the tables lack,
	// and the number of fields of each class.
	skimmed struct{ types, objects int }
	fields  []int32
}

// The memory for a class and for a string in a table that grows.
const (
	classSize = 80
	nameSize  = 32
)

// maxClasses is how many classes a message may define.
const maxClasses = 1 << 16

// A class is a defined class.
type class struct {
	name   string
	fields []string
}

// NewReader returns a Reader for a stream. It does not change b.
func NewReader(b []byte) *Reader {
	return &Reader{bytes: b, room: room.For(len(b)), reserved: firstReserved}
}

const (
	// firstReserved is how many bytes a Reader may allocate without a reservation, so that small
	// messages need none.
	firstReserved = 1 << 10
	// reserveStep is the smallest reservation.
	reserveStep = 4 << 10
	// againCost is what reading a byte again costs of the room, because a message may refer to a
	// value many times.
	againCost = 8
)

// spend counts n bytes of memory that are about to be allocated. It reports false if there is no
// memory for them.
func (r *Reader) spend(n int) bool {
	if !r.charge(n) || r.Reserve == nil {
		return r.err == nil
	}
	if r.reserved -= n; r.reserved < 0 {
		more := max(-r.reserved, reserveStep)
		if !r.Reserve(more) {
			r.set(ErrMemory)
		}
		r.reserved += more
	}
	return r.err == nil
}

// charge takes n bytes of the room. It reports false if there is no room left.
func (r *Reader) charge(n int) bool {
	if room.Room(n) > r.room {
		r.set(errRoom)
	} else {
		r.room -= room.Room(n)
	}
	return r.err == nil
}

// At returns the offset of the next value.
func (r *Reader) At() int { return r.at }

// Text reads a string. A null is an empty string.
func (r *Reader) Text() (string, error) {
	t := r.next()
	if t.kind != isText && t.kind != isNull {
		r.failf("a string was expected, not %v", t.kind)
	}
	return t.text, r.err
}

// Int reads an int.
func (r *Reader) Int() (int, error) {
	t := r.next()
	if t.kind != isInt {
		r.failf("an int was expected, not %v", t.kind)
	}
	return int(t.n), r.err
}

// List reads the beginning of a list, and returns how many values follow. A null is an empty list.
func (r *Reader) List() (int, error) {
	t := r.next()
	if t.kind != isNull && (t.kind != isList || t.length < 0) {
		r.failf("a list with a length was expected, not %v", t.kind)
	}
	return int(t.length), r.err
}

// Skip reads a value and checks it.
func (r *Reader) Skip() error {
	r.skip(0)
	return r.err
}

// skip reads a value. It reports false at the end of a list or a map.
func (r *Reader) skip(depth int) bool {
	t := r.next()
	if depth > maxDepth {
		r.set(errDepth)
	}
	for i := int64(0); t.holds() && (t.length < 0 || i < t.length) && r.err == nil; i++ {
		if !r.skip(depth + 1) {
			r.endOf(t, i)
			return true
		}
	}
	if t.kind == isEnd && depth == 0 {
		r.failf("a value was expected, not %v", t.kind)
	}
	return t.kind != isEnd
}

// A token is a value, or the beginning of a list, a map or an object.
type token struct {
	kind   kind
	at     int // the offset of the value
	n      int64
	f      float64
	text   string
	binary []byte // a part of the message, or a copy
	typ    string // of a list or a map; "" if there is none
	class  int    // of an object
	object int    // the number of a list, a map or an object
	length int64  // of a list; the fields of an object; -1 up to an end
}

// holds reports whether values follow the token that are inside it.
func (t *token) holds() bool { return t.kind == isList || t.kind == isMap || t.kind == isObject }

// endOf checks that a list or a map may end after n values.
func (r *Reader) endOf(t token, n int64) {
	switch {
	case t.length >= 0:
		r.failf("it ends after %d of %d values", n, t.length)
	case t.kind == isMap && n%2 == 1:
		r.failf("a map ends after a key")
	}
}

// set ends the reading because of err, which may be nil.
func (r *Reader) set(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *Reader) failf(format string, args ...any) {
	r.set(fmt.Errorf("hessian: "+format, args...))
}

// take reads n bytes. It returns nil after an error.
func (r *Reader) take(n int) []byte {
	if r.err == nil && n > len(r.bytes)-r.at {
		r.err = errCut
	}
	if r.err != nil {
		return nil
	}
	r.at += n
	return r.bytes[r.at-n : r.at]
}

// byte reads one byte.
func (r *Reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// big reads a signed number of n bytes whose upper byte is that of first.
func (r *Reader) big(first int64, n int) int64 {
	for _, b := range r.take(n) {
		first = first<<8 | int64(b)
	}
	return first
}

// signed reads a signed number of n bytes.
func (r *Reader) signed(n int) int64 {
	shift := 64 - 8*n
	return r.big(0, n) << shift >> shift
}

// next reads the next token. It reads over definitions of classes. After an error, the token is a
// null.
func (r *Reader) next() (t token) {
	from := r.at
	defer func() {
		if from < r.seen {
			r.charge(againCost * (r.at - from))
		}
		if r.seen = max(r.seen, r.at); r.err != nil {
			t = token{}
		}
	}()
	for r.err == nil {
		t = token{at: r.at}
		c := r.byte()
		if c != classDef {
			r.value(&t, c)
			return t
		}
		r.define(t.at)
	}
	return t
}

// value reads the token that begins with c.
func (r *Reader) value(t *token, c byte) {
	switch {
	case c <= 0x1f, c >= 0x30 && c <= 0x33, c == stringChunk, c == stringFinal:
		t.kind, t.text = isText, r.text(c)
	case c <= 0x2f, c >= 0x34 && c <= 0x37, c == binaryChunk, c == binaryFinal:
		t.kind, t.binary = isBinary, r.binary(c)
	case c >= 0x80 && c < 0xd8, c == int32Value:
		t.kind, t.n = isInt, r.int(c)
	case c >= 0xd8:
		t.kind, t.n = isLong, r.long(c)
	case c <= 0x3f, c == int64Value, c == longOfInt32:
		t.kind, t.n = isLong, r.long(c)
	case c >= shortObject:
		r.group(t, c)
	default:
		r.rare(t, c)
	}
}

// rare reads tokens that are a letter, or a double.
func (r *Reader) rare(t *token, c byte) {
	switch c {
	case nullValue:
	case trueValue, falseValue:
		t.kind = isBool
		if c == trueValue {
			t.n = 1
		}
	case dateMillis:
		t.kind, t.n = isDate, r.signed(8)
	case dateMinutes:
		t.kind, t.n = isDate, r.signed(4)*60_000
	case double:
		t.kind, t.f = isDouble, math.Float64frombits(uint64(r.signed(8))) //nolint:gosec // the bits
	case doubleZero, doubleOne:
		t.kind, t.f = isDouble, float64(c-doubleZero)
	case doubleOfInt8:
		t.kind, t.f = isDouble, float64(r.signed(1))
	case doubleOfInt16:
		t.kind, t.f = isDouble, float64(r.signed(2))
	case doubleOfMillis:
		t.kind, t.f = isDouble, float64(r.signed(4))/1000
	case reference:
		t.kind, t.n = isRef, r.entry("value", r.int(r.byte()), r.skimmed.objects, len(r.objects))
	case end:
		t.kind = isEnd
	default:
		r.group(t, c)
	}
}

// group reads the beginning of a list, a map or an object.
func (r *Reader) group(t *token, c byte) {
	t.length = -1
	switch {
	case c == untypedMap:
		t.kind = isMap
	case c == typedMap:
		t.kind, t.typ = isMap, r.typ()
	case c == variableList:
		t.kind = isList
	case c == variableTyped:
		t.kind, t.typ = isList, r.typ()
	case c == fixedList:
		t.kind, t.length = isList, r.count()
	case c == fixedTyped:
		t.kind, t.typ = isList, r.typ()
		t.length = r.count()
	case c >= shortList && c < shortList+8:
		t.kind, t.length = isList, int64(c-shortList)
	case c >= shortTyped && c < shortTyped+8:
		t.kind, t.typ, t.length = isList, r.typ(), int64(c-shortTyped)
	case c >= shortObject && c < shortObject+16:
		t.kind, t.class = isObject, int(c-shortObject)
	case c == object:
		t.kind, t.class = isObject, int(r.int(r.byte()))
	default:
		r.failf("no value begins with the byte %#02x", c)
		return
	}
	if t.kind == isObject {
		t.class = int(r.entry("class", int64(t.class), len(r.fields), len(r.classes)))
		switch {
		case r.err != nil:
			return
		case r.Skims:
			t.length = int64(r.fields[t.class])
		default:
			t.length = int64(len(r.classes[t.class].fields))
		}
	}
	r.number(t)
}

// entry returns the index of entry number n of a table, which lacks the first skimmed entries. It
// returns n while the Reader skims.
func (r *Reader) entry(what string, n int64, skimmed, kept int) int64 {
	switch first := int64(skimmed); {
	case r.err != nil:
	case n < 0 || n >= first+int64(kept):
		r.failf("there is no %s number %d to refer to", what, n)
	case r.Skims:
		return n
	case n < first:
		r.failf("%s number %d to refer to was skipped", what, n)
	default:
		return n - first
	}
	return 0
}

// number gives a list, a map or an object its number.
func (r *Reader) number(t *token) {
	switch {
	case r.err != nil:
		return
	case r.Skims:
		r.skimmed.objects++
		return
	case t.at >= r.seen:
		if t.object = len(r.objects); r.spend(2 * 8) {
			r.objects = append(r.objects, t.at)
		}
		return
	}
	i, found := slices.BinarySearch(r.objects, t.at)
	if !found {
		r.failf("a value at %d has no number", t.at)
	}
	t.object = i
}

// define reads the definition of a class at an offset.
func (r *Reader) define(at int) {
	c := class{name: r.text(r.byte())}
	n := r.count()
	r.spend(classSize + len(c.name))
	for i := int64(0); i < n && r.err == nil; i++ {
		name := r.text(r.byte())
		if !r.Skims && r.spend(nameSize+len(name)) {
			c.fields = append(c.fields, name)
		}
	}
	switch {
	case r.err != nil || at < r.seen:
	case len(r.fields)+len(r.classes) == maxClasses:
		r.failf("more than %d classes are defined", maxClasses)
	case r.Skims:
		r.fields = append(r.fields, int32(n)) //nolint:gosec // at most the length of the message
	default:
		r.classes = append(r.classes, c)
	}
}

// count reads how many values follow. Each takes a byte or more.
func (r *Reader) count() int64 {
	n := r.int(r.byte())
	if n < 0 || n > int64(len(r.bytes)-r.at) {
		r.failf("%d values do not fit in the rest of the message", n)
		return 0
	}
	return n
}

// typ reads the name of a type, or its number in the table of types.
func (r *Reader) typ() string {
	at, c := r.at, r.byte()
	if c <= 0x1f || c >= 0x30 && c <= 0x33 || c == stringChunk || c == stringFinal {
		name := r.text(c)
		if r.Skims {
			r.skimmed.types++
		} else if at >= r.seen && r.spend(nameSize+len(name)) {
			r.types = append(r.types, name)
		}
		return name
	}
	n := int(r.entry("type", r.int(c), 0, r.skimmed.types+len(r.types))) - r.skimmed.types
	if r.err != nil || n < 0 {
		return ""
	}
	return r.types[n]
}

// int reads an int that begins with c.
func (r *Reader) int(c byte) int64 {
	switch {
	case c == int32Value:
		return r.signed(4)
	case c >= 0x80 && c < 0xc0:
		return int64(c) - 0x90
	case c >= 0xc0 && c < 0xd0:
		return r.big(int64(c)-0xc8, 1)
	case c >= 0xd0 && c < 0xd8:
		return r.big(int64(c)-0xd4, 2)
	}
	r.failf("an int was expected, not the byte %#02x", c)
	return 0
}

// long reads a long that begins with c.
func (r *Reader) long(c byte) int64 {
	switch {
	case c == int64Value:
		return r.signed(8)
	case c == longOfInt32:
		return r.signed(4)
	case c >= 0xf0:
		return r.big(int64(c)-0xf8, 1)
	case c >= 0xd8:
		return int64(c) - 0xe0
	}
	return r.big(int64(c)-0x3c, 2)
}

// binary reads binary data that begins with c. If it has several parts, it is a copy.
func (r *Reader) binary(c byte) (all []byte) {
	for first := true; r.err == nil; first = false {
		n, final := 0, c != binaryChunk
		switch {
		case c >= 0x20 && c <= 0x2f:
			n = int(c - 0x20)
		case c >= 0x34 && c <= 0x37:
			n = int(r.big(int64(c)-0x34, 1))
		case c == binaryChunk, c == binaryFinal:
			n = int(r.big(0, 2))
		default:
			r.failf("a part of a binary begins with the byte %#02x", c)
		}
		part := r.take(n)
		if first && final {
			return part
		}
		if !r.Skims {
			all = append(all, part...)
		}
		if final {
			return all
		}
		c = r.byte()
	}
	return nil
}

// text reads a string that begins with c.
func (r *Reader) text(c byte) string {
	var b []byte
	for r.err == nil {
		n, final := 0, c != stringChunk
		switch {
		case c <= 0x1f:
			n = int(c)
		case c >= 0x30 && c <= 0x33:
			n = int(r.big(int64(c)-0x30, 1))
		case c == stringChunk, c == stringFinal:
			n = int(r.big(0, 2))
		default:
			r.failf("a string was expected, not the byte %#02x", c)
		}
		if final && len(b) == 0 && n > 0 && r.ascii(n) == n {
			part := r.take(n)
			if r.Skims {
				return ""
			}
			return string(part)
		}
		if b = r.units(b, n); final {
			break
		}
		c = r.byte()
	}
	if r.err != nil {
		return ""
	}
	return string(b)
}

// units appends n units of UTF-16 to b in UTF-8. Java writes each unit of a surrogate pair in three
// bytes, and other programs write the pair in four.
func (r *Reader) units(b []byte, n int) []byte {
	high := rune(-1)
	for n > 0 && r.err == nil {
		if plain := r.ascii(n); plain > 0 && high < 0 {
			part := r.take(plain)
			if n -= plain; !r.Skims {
				b = append(b, part...)
			}
			continue
		}
		c, size := r.unit()
		if n -= 1; size == 4 {
			n--
		}
		switch {
		case high >= 0 && utf16.IsSurrogate(c) && c >= 0xdc00:
			b, high = r.append(b, utf16.DecodeRune(high, c)), -1
			continue
		case high >= 0:
			b, high = r.append(b, utf8.RuneError), -1
		}
		if utf16.IsSurrogate(c) && c < 0xdc00 {
			high = c
		} else {
			b = r.append(b, c) // a lone surrogate becomes utf8.RuneError
		}
	}
	if high >= 0 {
		b = r.append(b, utf8.RuneError)
	}
	return b
}

// append appends c to b in UTF-8, unless the Reader skims.
func (r *Reader) append(b []byte, c rune) []byte {
	if r.Skims {
		return b
	}
	return utf8.AppendRune(b, c)
}

// ascii returns how many of the next n characters are ASCII.
func (r *Reader) ascii(n int) int {
	rest := r.bytes[r.at:min(r.at+n, len(r.bytes))]
	for i, c := range rest {
		if c >= utf8.RuneSelf {
			return i
		}
	}
	return len(rest)
}

// unit reads a character, which may be a surrogate.
func (r *Reader) unit() (c rune, size int) {
	first := r.byte()
	switch {
	case first < 0x80:
		return rune(first), 1
	case first >= 0xc0 && first < 0xe0:
		c, size = rune(first&0x1f), 2
	case first >= 0xe0 && first < 0xf0:
		c, size = rune(first&0x0f), 3
	case first >= 0xf0 && first < 0xf8:
		c, size = rune(first&0x07), 4
	default:
		r.set(errText)
		return 0, 1
	}
	for _, b := range r.take(size - 1) {
		if b&0xc0 != 0x80 {
			r.set(errText)
		}
		c = c<<6 | rune(b&0x3f)
	}
	return c, size
}
