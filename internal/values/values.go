// SPDX-License-Identifier: Apache-2.0

// Package values encodes several values in one body: how many there are, and for each value its
// length and its encoding. It is the body of a method with several arguments or results.
package values

import (
	"encoding/binary"
	"errors"
	"fmt"
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
		var err error
		if scratch, err = c.Append(scratch[:0], value); err != nil {
			return dst, fmt.Errorf("value %d: %w", i+1, err)
		}
		dst = append(binary.AppendUvarint(dst, uint64(len(scratch))), scratch...)
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
		if err := c.Decode(encoded, value); err != nil {
			return fmt.Errorf("value %d: %w", i+1, err)
		}
		body = rest
	}
	return ended(body)
}

// Join appends the body of values that are already encoded to dst.
func Join(dst []byte, encoded [][]byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(encoded)))
	for _, value := range encoded {
		dst = append(binary.AppendUvarint(dst, uint64(len(value))), value...)
	}
	return dst
}

// Split returns the encoding of each value of a body, without copying it.
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

// cut returns the first of several encoded values, and the rest of them.
func cut(b []byte) (value, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, ErrBroken
	}
	end := size + int(n) //nolint:gosec // n is at most len(b)
	return b[size:end], b[end:], nil
}

// ended returns an error if bytes are left behind the last value.
func ended(rest []byte) error {
	if len(rest) > 0 {
		return fmt.Errorf("%d bytes follow the last value", len(rest))
	}
	return nil
}
