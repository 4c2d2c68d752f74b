// SPDX-License-Identifier: Apache-2.0

package thriftwire

import (
	"encoding/binary"
	"math"
)

// AppendField appends the header of a field to dst. Last is the number of the field before it, or
// 0. In the compact protocol, the header of a Bool has its value: see AppendBoolField.
func AppendField(dst []byte, f Format, t Type, id, last int16) []byte {
	if f == Binary {
		return append(dst, byte(t), byte(id>>8), byte(id)) //nolint:gosec // its two bytes
	}
	return appendCompactField(dst, compactNumbers[t], id, last)
}

// AppendBoolField appends a field of type Bool to dst, with its value.
func AppendBoolField(dst []byte, f Format, v bool, id, last int16) []byte {
	if f == Binary {
		return AppendBool(AppendField(dst, f, Bool, id, last), f, v)
	}
	return appendCompactField(dst, truth(v), id, last)
}

func truth(v bool) byte {
	if v {
		return compactTrue
	}
	return compactFalse
}

func appendCompactField(dst []byte, number byte, id, last int16) []byte {
	if delta := int(id) - int(last); delta > 0 && delta < 16 {
		return append(dst, byte(delta)<<4|number)
	}
	return AppendInt(append(dst, number), Compact, I16, int64(id))
}

// AppendBool appends a Bool that is an element.
func AppendBool(dst []byte, f Format, v bool) []byte {
	switch {
	case f == Compact:
		return append(dst, truth(v))
	case v:
		return append(dst, 1)
	}
	return append(dst, 0)
}

// AppendInt appends an integer of type I8, I16, I32 or I64.
func AppendInt(dst []byte, f Format, t Type, v int64) []byte {
	switch {
	case t == I8:
		return append(dst, byte(v)) //nolint:gosec // the bits
	case f == Compact:
		return binary.AppendUvarint(dst, uint64(v)<<1^uint64(v>>63)) //nolint:gosec // zigzag
	case t == I16:
		return binary.BigEndian.AppendUint16(dst, uint16(v)) //nolint:gosec // the bits
	case t == I32:
		return binary.BigEndian.AppendUint32(dst, uint32(v)) //nolint:gosec // the bits
	}
	return binary.BigEndian.AppendUint64(dst, uint64(v)) //nolint:gosec // the bits
}

// AppendDouble appends a Double.
func AppendDouble(dst []byte, f Format, v float64) []byte {
	if f == Compact {
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	}
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(v))
}

// AppendLength appends the length of a String.
func AppendLength(dst []byte, f Format, n int) []byte {
	if f == Compact {
		return binary.AppendUvarint(dst, uint64(n))
	}
	return binary.BigEndian.AppendUint32(dst, uint32(n)) //nolint:gosec // the encoder checks it
}

// AppendString appends a String.
func AppendString(dst []byte, f Format, s string) []byte {
	return append(AppendLength(dst, f, len(s)), s...)
}

// AppendList appends the header of a List or a Set.
func AppendList(dst []byte, f Format, elem Type, n int) []byte {
	switch {
	case f == Binary:
		return AppendLength(append(dst, byte(elem)), f, n)
	case n < 15:
		return append(dst, byte(n)<<4|compactNumbers[elem]) //nolint:gosec // n is small
	}
	return AppendLength(append(dst, 0xf0|compactNumbers[elem]), f, n)
}

// AppendMap appends the header of a Map.
func AppendMap(dst []byte, f Format, key, value Type, n int) []byte {
	if f == Binary {
		return AppendLength(append(dst, byte(key), byte(value)), f, n)
	}
	if dst = AppendLength(dst, f, n); n == 0 {
		return dst
	}
	return append(dst, compactNumbers[key]<<4|compactNumbers[value])
}
