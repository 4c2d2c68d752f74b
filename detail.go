// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Detail is a typed value that an error carries for the caller's program.
type Detail struct {
	// Type names the type of the value, for example "shop.v1.OutOfStock". Both sides have to know
	// it.
	Type string `json:"type"`
	// Value is the encoded value. The two programs agree on its encoding.
	Value []byte `json:"value,omitempty"`
}

// Limits on the details that travel with an error.
const (
	maxErrorDetails = 16 << 10 // bytes
	maxDetails      = 64
)

// encodeDetails encodes details. It returns nil if there are too many.
func encodeDetails(details []Detail) []byte {
	if len(details) > maxDetails {
		return nil
	}
	var b []byte
	for _, d := range details {
		if b = wire.AppendDetail(b, d.Type, d.Value); len(b) > maxErrorDetails {
			return nil
		}
	}
	return b
}

// parseDetails decodes the details that a peer has sent. It returns nil if they are malformed or
// too large.
func parseDetails(b []byte) []Detail {
	n, err := wire.CountPairs(b, maxDetails)
	if len(b) == 0 || len(b) > maxErrorDetails || err != nil || n > maxDetails {
		return nil
	}
	details := make([]Detail, 0, n)
	_ = wire.EachPair(b, func(name, value []byte) { // CountPairs has checked them
		details = append(details, Detail{text.Line(string(name)), append([]byte(nil), value...)})
	})
	return details
}
