// SPDX-License-Identifier: Apache-2.0

package httpwire

import (
	"encoding/base64"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/badrequest"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
)

// A JSONError is an error as Connect has it in JSON.
type JSONError struct {
	Code    string       `json:"code"`
	Message string       `json:"message,omitempty"`
	Details []JSONDetail `json:"details,omitempty"`
	// Violations are those of the details, for clients that do not know Protocol Buffers.
	Violations []badrequest.Violation `json:"violations,omitempty"`
}

// A JSONDetail is a detail of a JSONError.
type JSONDetail struct {
	Type  string `json:"type"`
	Value string `json:"value"` // base64 without padding
}

// An EndOfStream is the last message of a stream by Connect.
type EndOfStream struct {
	Error    *JSONError          `json:"error,omitempty"`
	Metadata map[string][]string `json:"metadata,omitempty"`
}

// NewJSONError returns e in the form of Connect.
func NewJSONError(e *yodel.Error) *JSONError {
	told := &JSONError{Code: e.Code.String(), Message: strings.ToValidUTF8(e.Message, "\uFFFD"), Violations: errortext.Violations(e.Details)}
	for _, d := range e.Details {
		told.Details = append(told.Details, JSONDetail{d.Type, base64.RawStdEncoding.EncodeToString(d.Value)})
	}
	return told
}

// Err returns the error. Ok is false if its code or its details are malformed.
func (e *JSONError) Err() (told *yodel.Error, ok bool) {
	told = &yodel.Error{Message: e.Message}
	if told.Code.UnmarshalText([]byte(e.Code)) != nil || told.Code == 0 {
		return nil, false //nolint:nilerr // ok says it
	}
	for _, d := range e.Details {
		value, err := Binary(d.Value)
		if err != nil {
			return nil, false //nolint:nilerr // ok says it
		}
		told.Details = append(told.Details, yodel.Detail{Type: d.Type[strings.LastIndexByte(d.Type, '/')+1:], Value: value})
	}
	return told, true
}

// Skew is how long a side of a call waits for the other one to end it because of its deadline. Both
// sides measure the deadline, and their clocks reach it at slightly different times.
const Skew = 20 * time.Millisecond
