// SPDX-License-Identifier: Apache-2.0

package httpwire

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/protowire"
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
	dst = protowire.AppendField(dst, 2, []byte(e.Message))
	for _, d := range e.Details {
		name := d.Type
		if !strings.Contains(name, "/") {
			name = typePrefix + name
		}
		dst = protowire.AppendField(dst, 3, protowire.AppendField(protowire.AppendField(nil, 1, []byte(name)), 2, d.Value))
	}
	return dst
}

// ParseStatus sets the details of e from a google.rpc.Status.
func ParseStatus(b []byte, e *yodel.Error) error {
	var details []yodel.Detail
	err := protowire.EachField(b, func(number uint64, value []byte) error {
		if number != 3 {
			return nil
		}
		var d yodel.Detail
		err := protowire.EachField(value, func(number uint64, value []byte) error {
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
