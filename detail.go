// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Detail is what an error says to the caller's program, beside the code.
type Detail struct {
	// Type names what the value is, for example "shop.v1.OutOfStock": both sides have to know it.
	Type string `json:"type"`
	// Value is encoded as goes with the type. Only the two programs know how.
	Value []byte `json:"value,omitempty"`
}

// Bounds of the details that travel with an error.
const (
	maxErrorDetails = 16 << 10 // bytes
	maxDetails      = 64
)

// encodeDetails encodes details, or none of them if there are too many.
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

// parseDetails decodes what a peer has sent. It returns nothing if that is broken, or too much.
func parseDetails(b []byte) []Detail {
	n, err := wire.CountPairs(b, maxDetails)
	if len(b) == 0 || len(b) > maxErrorDetails || err != nil || n > maxDetails {
		return nil
	}
	details := make([]Detail, 0, n)
	_ = wire.EachPair(b, func(name, value []byte) { // they were counted
		details = append(details, Detail{text.Line(string(name)), append([]byte(nil), value...)})
	})
	return details
}
