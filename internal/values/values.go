// SPDX-License-Identifier: Apache-2.0

// Package values encodes several values in one body: how many there are, and for each value its
// length plus 1 and its encoding. A nil pointer for which a codec has no encoding is a 0. It is the
// body of a method with several arguments or results.
package values

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
)

// A Codec encodes and decodes one value, as a yodel.Codec does. It is a type parameter, because a
// conversion between interfaces would make the stack frames of callers larger.
type Codec interface {
	Append(dst []byte, v any) ([]byte, error)
	Decode(src []byte, v any) error
}

// ErrBroken is the error of a body whose numbers are wrong.
var ErrBroken = errors.New("a broken list of values")

// Append appends the encoding of values to dst.
func Append[C Codec](dst []byte, c C, values []any) ([]byte, error) {
	dst = binary.AppendUvarint(dst, uint64(len(values)))
	var scratch []byte
	for i, value := range values {
		encoded, err := c.Append(scratch[:0], value)
		switch {
		case err == nil:
			scratch = encoded
			dst = append(binary.AppendUvarint(dst, uint64(len(scratch))+1), scratch...)
		case isNilPointer(value):
			dst = append(dst, 0)
		default:
			return dst, fmt.Errorf("value %d: %w", i+1, err)
		}
	}
	return dst, nil
}

// Decode decodes a body into values, which must be as many as the body has.
func Decode[C Codec](body []byte, c C, values []any) error {
	n, size := binary.Uvarint(body)
	if size <= 0 {
		return ErrBroken
	}
	if n != uint64(len(values)) {
		return fmt.Errorf("%d values came, %d are expected", n, len(values))
	}
	body = body[size:]
	for i, value := range values {
		encoded, rest, err := cut(body)
		if err != nil {
			return err
		}
		if encoded == nil {
			err = decodeNil(value)
		} else {
			err = c.Decode(encoded, value)
		}
		if err != nil {
			return fmt.Errorf("value %d: %w", i+1, err)
		}
		body = rest
	}
	return ended(body)
}

func isNilPointer(v any) bool {
	value := reflect.ValueOf(v)
	return value.Kind() == reflect.Pointer && value.IsNil()
}

// decodeNil sets the pointer to which v points to nil.
func decodeNil(v any) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() || target.Elem().Kind() != reflect.Pointer {
		return fmt.Errorf("a nil pointer came, which is no %T", v)
	}
	target.Elem().SetZero()
	return nil
}

// Join appends the body of values that are already encoded to dst.
func Join(dst []byte, encoded [][]byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(encoded)))
	for _, value := range encoded {
		dst = append(binary.AppendUvarint(dst, uint64(len(value))+1), value...)
	}
	return dst
}

// Split returns the encoding of each value of a body, without copying it. It is nil for a nil
// pointer that the codec cannot encode.
func Split(body []byte) ([][]byte, error) {
	n, size := binary.Uvarint(body)
	if size <= 0 || n > uint64(len(body)) { // a value takes at least a byte
		return nil, ErrBroken
	}
	values, rest := make([][]byte, 0, n), body[size:]
	for range n {
		value, next, err := cut(rest)
		if err != nil {
			return nil, err
		}
		values, rest = append(values, value), next
	}
	if err := ended(rest); err != nil {
		return nil, err
	}
	return values, nil
}

// cut returns the first of several encoded values, and the rest of them. The value is nil if it is
// a nil pointer.
func cut(b []byte) (value, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	switch {
	case size <= 0 || n > uint64(len(b)-size)+1:
		return nil, nil, ErrBroken
	case n == 0:
		return nil, b[size:], nil
	}
	end := size + int(n) - 1 //nolint:gosec // n is at most len(b)+1
	return b[size:end], b[end:], nil
}

// ended returns an error if bytes are left behind the last value.
func ended(rest []byte) error {
	if len(rest) > 0 {
		return fmt.Errorf("%d bytes follow the last value", len(rest))
	}
	return nil
}
