// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/yodel-rpc/yodel"
)

// The functions in this file choose the key of a call for consistent hashing. Any other function
// will do. It must return the same number in every client for calls that belong together. The
// numbers need not look random, because they are mixed.

// Hash returns a number for s, the same in every client. It is for key functions of your own.
func Hash(s string) uint64 { return hashString(s) }

// ByMethod sends all calls of a method to one endpoint.
func ByMethod(call *yodel.Call) uint64 { return hashString(call.Method) }

// ByKey sends all calls with the same Call.Key to one endpoint. A call without a key goes to any
// endpoint.
func ByKey(call *yodel.Call) uint64 {
	if call.Key == "" {
		return rand.Uint64()
	}
	return hashString(call.Key)
}

// ByArgs sends all calls of a method with equal arguments to one endpoint.
//
// It reads arguments by reflection, without an allocation: numbers, strings, bytes, times, the
// values behind pointers and interfaces, elements in their order, and exported fields in theirs,
// regardless of names. Unexported fields do not count, because no codec sends them. So a type that
// keeps everything in such fields (big.Int, a message of protobuf's opaque API) always hashes to
// one number, and needs a function of its own. Only the first 4,096 values of large arguments
// count. Only the length of a map counts if the map is larger than half of what is left of these.
// Maps cost an allocation or two for each entry. Hashing takes a nanosecond for each byte of
// strings and about ten for each value. If a few bytes identify the calls that belong together,
// ByKey is faster.
func ByArgs(call *yodel.Call) uint64 {
	d := digest{sum: hashString(call.Method), left: 4096}
	d.value(reflect.ValueOf(call.Args), 0)
	return d.sum
}

// A digest computes the hash of the values that are added to it.
type digest struct {
	sum  uint64
	left int // values that may still be added
}

// deepest bounds the nesting of messages, because one may point to itself.
const deepest = 64

var timeType = reflect.TypeFor[time.Time]()

func (d *digest) number(n uint64) { d.sum = mix(bits.RotateLeft64(d.sum, 5) ^ n) }

// value adds v, and its kind where the kind distinguishes two values.
func (d *digest) value(v reflect.Value, depth int) {
	if d.left--; d.left < 0 || depth > deepest {
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		d.number(n)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.number(uint64(v.Int())) //nolint:gosec // all bits count
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		d.number(v.Uint())
	case reflect.Float32, reflect.Float64:
		d.number(floatBits(v.Float()))
	case reflect.Complex64, reflect.Complex128:
		d.number(floatBits(real(v.Complex())))
		d.number(floatBits(imag(v.Complex())))
	case reflect.String:
		d.number(hashString(v.String()))
	case reflect.Pointer, reflect.Interface:
		d.number(1)
		d.value(v.Elem(), depth+1) // adds nothing if it is nil
	case reflect.Slice, reflect.Array:
		d.elements(v, depth)
	case reflect.Struct:
		d.fields(v, depth)
	case reflect.Map:
		d.entries(v, depth)
	}
}

// floatBits returns the bits of f, the same for both zeros.
func floatBits(f float64) uint64 {
	if f == 0 {
		return 0
	}
	return math.Float64bits(f)
}

func (d *digest) elements(v reflect.Value, depth int) {
	d.number(uint64(v.Len()))
	if v.Type().Elem().Kind() == reflect.Uint8 && (v.Kind() == reflect.Slice || v.CanAddr()) {
		d.number(hashString(v.Bytes()))
		return
	}
	for i := 0; i < v.Len() && d.left > 0; i++ {
		d.value(v.Index(i), depth+1)
	}
}

func (d *digest) fields(v reflect.Value, depth int) {
	if v.Type() == timeType && v.CanInterface() {
		d.time(v)
		return
	}
	for i := 0; i < v.NumField() && d.left > 0; i++ {
		// An embedded struct may have exported fields though its own name is not exported.
		if f := v.Field(i); f.CanInterface() || f.Kind() == reflect.Struct {
			d.value(f, depth+1)
		}
	}
}

// time adds the instant, without its location. A struct that is not addressable costs an
// allocation.
func (d *digest) time(v reflect.Value) {
	var t time.Time
	if v.CanAddr() {
		t = *v.Addr().Interface().(*time.Time) //nolint:forcetypeassert // see fields
	} else {
		t = v.Interface().(time.Time) //nolint:forcetypeassert // see fields
	}
	d.number(uint64(t.Unix())) //nolint:gosec // all bits count
	d.number(uint64(t.Nanosecond()))
}

// entries adds the entries of a map, independent of their order.
func (d *digest) entries(v reflect.Value, depth int) {
	d.number(uint64(v.Len()))
	if v.Len() == 0 {
		return
	}
	// All entries get the same limit, because their order is not known, and half of the rest is
	// left for what follows.
	sum, each := uint64(0), d.left/2/v.Len()
	for entry := v.MapRange(); each > 0 && entry.Next(); {
		one := digest{left: each}
		one.value(entry.Key(), depth+1)
		one.value(entry.Value(), depth+1)
		sum += one.sum
	}
	d.left -= each * v.Len()
	d.number(sum)
}

// hashString is FNV-1a of 64 bits (Fowler, Noll, Vo), mixed.
func hashString[T string | []byte](s T) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix makes every bit of the result depend on every bit of h, and maps different h to different
// results: the last step of SplitMix64 (Steele, Lea and Flood, 2014).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
