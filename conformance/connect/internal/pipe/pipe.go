// SPDX-License-Identifier: Apache-2.0

// Package pipe exchanges messages with the test runner over standard input and output.
package pipe

import (
	"encoding/binary"
	"io"

	"google.golang.org/protobuf/proto"
)

// Read reads a message with its length before it.
func Read(in io.Reader, m proto.Message) error {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(in, b); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// Write writes a message with its length before it.
func Write(out io.Writer, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	_, err = out.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)) //nolint:gosec // it is small
	return err
}
