// SPDX-License-Identifier: Apache-2.0

package yodel

import "github.com/yodel-rpc/yodel/internal/values"

// An Encoded is a message, or Values, that is already encoded in the codec of its call. As
// arguments or as a reply it is sent unchanged. A client that sets Call.Reply to an *Encoded gets
// the reply without decoding. Its Body is always decompressed. See Call.Encode.
type Encoded struct {
	Body    []byte
	Several bool // of Values
}

// SetValues makes e the encoding of Values, each of which is already encoded.
func (e *Encoded) SetValues(encoded ...[]byte) {
	e.Several, e.Body = true, values.Join(e.Body[:0], encoded)
}

// Values returns the encoding of each value, without copying it. If e is one message, Values
// returns its body.
func (e *Encoded) Values() ([][]byte, error) {
	if !e.Several {
		return [][]byte{e.Body}, nil
	}
	return values.Split(e.Body)
}
