// SPDX-License-Identifier: Apache-2.0

// Package details encodes the details of errors for yodel's own protocol.
package details

import (
	"iter"

	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Limits on the details that travel with an error.
const (
	maxBytes = 16 << 10
	maxCount = 64
)

// Encode encodes details, each of which is a type and a value. It returns nil if there are too
// many.
func Encode(details iter.Seq2[string, []byte]) (b []byte) {
	n := 0
	for name, value := range details {
		b = wire.AppendDetail(b, name, value)
		if n++; n > maxCount || len(b) > maxBytes {
			return nil
		}
	}
	return b
}

// Parse calls add for each detail that a peer has sent. It does not if they are malformed or too
// large.
func Parse(b []byte, add func(name string, value []byte)) {
	n, err := wire.CountPairs(b, maxCount)
	if len(b) > maxBytes || err != nil || n > maxCount {
		return
	}
	_ = wire.EachPair(b, func(name, value []byte) { // CountPairs has checked them
		add(text.Line(string(name)), append([]byte(nil), value...))
	})
}
