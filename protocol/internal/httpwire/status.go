// SPDX-License-Identifier: Apache-2.0

package httpwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// This file reads and writes google.rpc.Status, the Protocol Buffers message in which gRPC carries
// the details of an error:
//
//	message Status { int32 code = 1; string message = 2; repeated google.protobuf.Any details = 3; }
//	message Any    { string type_url = 1; bytes value = 2; }

const typePrefix = "type.googleapis.com/"

// AppendStatus appends the google.rpc.Status of an error.
func AppendStatus(dst []byte, e *yodel.Error) []byte {
	dst = binary.AppendUvarint(append(dst, 1<<3), uint64(e.Code))
	dst = AppendField(dst, 2, []byte(e.Message))
	for _, d := range e.Details {
		name := d.Type
		if !strings.Contains(name, "/") {
			name = typePrefix + name
		}
		dst = AppendField(dst, 3, AppendField(AppendField(nil, 1, []byte(name)), 2, d.Value))
	}
	return dst
}

// ParseStatus sets the details of e from a google.rpc.Status.
func ParseStatus(b []byte, e *yodel.Error) error {
	var details []yodel.Detail
	err := EachField(b, func(number uint64, value []byte) error {
		if number != 3 {
			return nil
		}
		var d yodel.Detail
		err := EachField(value, func(number uint64, value []byte) error {
			switch number {
			case 1:
				d.Type = string(value[bytes.LastIndexByte(value, '/')+1:])
			case 2:
				d.Value = append([]byte(nil), value...)
			}
			return nil
		})
		details = append(details, d)
		return err
	})
	if err == nil {
		e.Details = details
	}
	return err
}

// AppendField appends a field of a Protocol Buffers message that has a length, unless it is empty.
// Number is less than 16.
func AppendField(dst []byte, number byte, value []byte) []byte {
	if len(value) == 0 {
		return dst
	}
	return append(binary.AppendUvarint(append(dst, number<<3|2), uint64(len(value))), value...)
}

var errFields = errors.New("the message of Protocol Buffers is malformed")

// EachField calls f for each field of b, a Protocol Buffers message. Value is nil for numbers. It
// is a part of b. Groups are malformed.
func EachField(b []byte, f func(number uint64, value []byte) error) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return errFields
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
			return errFields
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
