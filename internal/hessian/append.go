// SPDX-License-Identifier: Apache-2.0

package hessian

import (
	"encoding/binary"
	"math"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// AppendNull appends a null.
func AppendNull(b []byte) []byte { return append(b, nullValue) }

// AppendBool appends a boolean.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, trueValue)
	}
	return append(b, falseValue)
}

// AppendInt appends an int.
func AppendInt(b []byte, n int32) []byte {
	switch {
	case n >= -16 && n < 48:
		return append(b, byte(n+0x90))
	case n >= -2048 && n < 2048:
		return append(b, byte(n>>8+0xc8), byte(n)) //nolint:gosec // the case bounds the value, or its low byte is meant
	case n >= -1<<18 && n < 1<<18:
		return append(b, byte(n>>16+0xd4), byte(n>>8), byte(n)) //nolint:gosec // the case bounds the value, or its low byte is meant
	}
	return binary.BigEndian.AppendUint32(append(b, int32Value), uint32(n)) //nolint:gosec // the bits
}

// appendLong appends a long.
func appendLong(b []byte, n int64) []byte {
	switch {
	case n >= -8 && n < 16:
		return append(b, byte(n+0xe0))
	case n >= -2048 && n < 2048:
		return append(b, byte(n>>8+0xf8), byte(n)) //nolint:gosec // the case bounds the value, or its low byte is meant
	case n >= -1<<18 && n < 1<<18:
		return append(b, byte(n>>16+0x3c), byte(n>>8), byte(n)) //nolint:gosec // the case bounds the value, or its low byte is meant
	case n >= math.MinInt32 && n <= math.MaxInt32:
		return binary.BigEndian.AppendUint32(append(b, longOfInt32), uint32(n)) //nolint:gosec // the bits
	}
	return binary.BigEndian.AppendUint64(append(b, int64Value), uint64(n)) //nolint:gosec // the bits
}

// appendDouble appends a double.
func appendDouble(b []byte, f float64) []byte {
	switch whole := int64(f); {
	case float64(whole) != f || math.Signbit(f) && f == 0:
	case whole == 0 || whole == 1:
		return append(b, byte(doubleZero+whole))
	case whole >= math.MinInt8 && whole <= math.MaxInt8:
		return append(b, doubleOfInt8, byte(whole)) //nolint:gosec // the case bounds the value, or its low byte is meant
	case whole >= math.MinInt16 && whole <= math.MaxInt16:
		return append(b, doubleOfInt16, byte(whole>>8), byte(whole)) //nolint:gosec // the case bounds the value, or its low byte is meant
	}
	return binary.BigEndian.AppendUint64(append(b, double), math.Float64bits(f))
}

// appendTime appends a date. Its precision is a millisecond.
func appendTime(b []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(append(b, dateMillis), uint64(t.UnixMilli()))
}

// chunk is the largest length of one part of a string or a binary.
const chunk = 32 << 10

// appendBinary appends binary data.
func appendBinary(b, data []byte) []byte {
	for len(data) > chunk {
		b = append(append(b, binaryChunk, chunk>>8, chunk&0xff), data[:chunk]...)
		data = data[chunk:]
	}
	switch n := len(data); {
	case n < 16:
		b = append(b, byte(0x20+n))
	case n < 1024:
		b = append(b, byte(0x34+n>>8), byte(n)) //nolint:gosec // the case bounds the value, or its low byte is meant
	default:
		b = append(b, binaryFinal, byte(n>>8), byte(n)) //nolint:gosec // the case bounds the value, or its low byte is meant
	}
	return append(b, data...)
}

// AppendText appends a string. Bytes that are not UTF-8 become the replacement character.
func AppendText(b []byte, s string) []byte {
	if len(s) <= chunk && isASCII(s) {
		return append(appendTextHead(b, len(s), true), s...)
	}
	for {
		n, units := len(s), 0 // bytes and units of UTF-16 of this part
		for i, c := range s {
			more := utf16.RuneLen(c)
			if units+more > chunk {
				n = i
				break
			}
			units += more
		}
		final := n == len(s)
		b = appendUnits(appendTextHead(b, units, final), s[:n])
		if s = s[n:]; final {
			return b
		}
	}
}

func isASCII(s string) bool {
	bits := byte(0)
	for i := range len(s) {
		bits |= s[i]
	}
	return bits < utf8.RuneSelf
}

// appendTextHead appends the beginning of a part of a string.
func appendTextHead(b []byte, units int, final bool) []byte {
	switch {
	case !final:
		return append(b, stringChunk, byte(units>>8), byte(units)) //nolint:gosec // the case bounds the value, or its low byte is meant
	case units < 32:
		return append(b, byte(units)) //nolint:gosec // the case bounds the value, or its low byte is meant
	case units < 1024:
		return append(b, byte(0x30+units>>8), byte(units)) //nolint:gosec // the case bounds the value, or its low byte is meant
	}
	return append(b, stringFinal, byte(units>>8), byte(units)) //nolint:gosec // the case bounds the value, or its low byte is meant
}

// appendUnits appends the characters of a string as Java does: each unit of a surrogate pair in
// three bytes.
func appendUnits(b []byte, s string) []byte {
	for _, c := range s {
		if c < 1<<16 {
			b = utf8.AppendRune(b, c)
			continue
		}
		high, low := utf16.EncodeRune(c)
		for _, u := range [...]rune{high, low} {
			b = append(b, byte(0xe0|u>>12), byte(0x80|u>>6&0x3f), byte(0x80|u&0x3f)) //nolint:gosec // the case bounds the value, or its low byte is meant
		}
	}
	return b
}

// appendLength appends the beginning of a list without a type.
func appendLength(b []byte, n int64) []byte {
	if n < 8 {
		return append(b, byte(shortList+n)) //nolint:gosec // the case bounds the value, or its low byte is meant
	}
	return AppendInt(append(b, fixedList), int32(n)) //nolint:gosec // the limits of messages are smaller
}

// appendClass appends the definition of a class.
func appendClass(b []byte, name string, fields []string) []byte {
	b = AppendInt(AppendText(append(b, classDef), name), int32(len(fields))) //nolint:gosec // as above
	for _, field := range fields {
		b = AppendText(b, field)
	}
	return b
}

// appendObject appends the beginning of an object.
func appendObject(b []byte, class int) []byte {
	if class < 16 {
		return append(b, byte(shortObject+class)) //nolint:gosec // the case bounds the value, or its low byte is meant
	}
	return AppendInt(append(b, object), int32(class)) //nolint:gosec // as above
}

// AppendObject appends an object of a class with fields of type string. It must be the first of its
// stream that has a class.
func AppendObject(b []byte, class string, fields ...[2]string) []byte {
	names := make([]string, len(fields))
	for i, field := range fields {
		names[i] = field[0]
	}
	b = appendObject(appendClass(b, class, names), 0)
	for _, field := range fields {
		b = AppendText(b, field[1])
	}
	return b
}

// AppendPairs appends a map of strings, with its pairs in this order.
func AppendPairs(b []byte, pairs ...[2]string) []byte {
	b = append(b, untypedMap)
	for _, pair := range pairs {
		b = AppendText(AppendText(b, pair[0]), pair[1])
	}
	return append(b, end)
}
