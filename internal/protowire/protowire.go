// SPDX-License-Identifier: Apache-2.0

// Package protowire reads and writes the fields of small messages of Protocol Buffers, such as
// google.rpc.Status, without generated code and without a dependency.
package protowire

import (
	"encoding/binary"
	"errors"
)

// AppendField appends a field of a Protocol Buffers message that has a length, unless it is empty.
// Number is less than 16.
func AppendField(dst []byte, number byte, value []byte) []byte {
	if len(value) == 0 {
		return dst
	}
	return append(binary.AppendUvarint(append(dst, number<<3|2), uint64(len(value))), value...)
}

var errMalformed = errors.New("the message of Protocol Buffers is malformed")

// EachField calls f for each field of b, a Protocol Buffers message. Value is nil for numbers. It
// is a part of b. Groups are malformed.
func EachField(b []byte, f func(number uint64, value []byte) error) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return errMalformed
		}
		b = b[n:]
		size, skip := uint64(0), 0
		switch tag & 7 {
		case 0:
			_, skip = binary.Uvarint(b)
		case 1:
			skip = 8
		case 5:
			skip = 4
		case 2:
			size, skip = binary.Uvarint(b)
		}
		if skip <= 0 || skip > len(b) || size > uint64(len(b)-skip) {
			return errMalformed
		}
		var value []byte
		if tag&7 == 2 {
			value = b[skip : skip+int(size)]
		}
		if err := f(tag>>3, value); err != nil {
			return err
		}
		b = b[skip+int(size):]
	}
	return nil
}
