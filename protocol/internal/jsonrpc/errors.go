// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/badrequest"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
)

// The error codes of the specification.
const (
	parseError     = -32700
	invalidRequest = -32600
	unknownMethod  = -32601
	invalidParams  = -32602
	internalError  = -32603
)

// firstCode is the error code for the yodel.Code 0. The other codes follow downwards, as far as the
// specification does not have codes of its own for them. Codes over lastCode do not fit between
// those of the specification: they have the error code of Unknown, and are in the data.
const (
	firstCode = -32000
	lastCode  = 99
)

// Limits on the details of an error, as in yodel's own protocol, and on the text of an error.
const (
	maxDetails     = 64
	maxDetailBytes = 16 << 10
	maxText        = 4 << 10
)

// An errorObject is the member "error" of a reply of version 2.0.
type errorObject struct {
	Code    int        `json:"code"`
	Message string     `json:"message"`
	Data    *errorData `json:"data,omitempty"`
}

// An errorData says what the error code and the message do not.
type errorData struct {
	Code         yodel.Code     `json:"code"`
	ID           string         `json:"id,omitempty"`
	Details      []yodel.Detail `json:"details,omitempty"`
	RetryAfterMs int64          `json:"retryAfterMs,omitempty"`
	NotProcessed bool           `json:"notProcessed,omitempty"`
	// Violations are those of the details, for clients that do not know Protocol Buffers.
	Violations []badrequest.Violation `json:"violations,omitempty"`
}

// codeOf returns the error code for an error of yodel.
func codeOf(e *yodel.Error) int {
	switch {
	case e.Code == yodel.InvalidArgument && e.AboutMessage(): // the parameters do not fit
		return invalidParams
	case e.Code == yodel.Unimplemented && e.NotProcessed:
		return unknownMethod
	case e.Code == yodel.Internal:
		return internalError
	case e.Code > lastCode:
		return firstCode - int(yodel.Unknown)
	}
	return firstCode - int(e.Code)
}

// objectOf returns the error object for an error of yodel.
func objectOf(e *yodel.Error) errorObject {
	o := errorObject{Code: codeOf(e), Message: e.Message}
	data := errorData{Code: e.Code, ID: e.ID, Details: e.Details, RetryAfterMs: int64((e.RetryAfter + time.Millisecond - 1) / time.Millisecond)}
	if !fit(data.Details) {
		data.Details = nil
	}
	data.NotProcessed, data.Violations = e.NotProcessed, errortext.Violations(data.Details)
	if e.Code > yodel.Unauthenticated || data.ID != "" || len(data.Details) > 0 || data.RetryAfterMs > 0 || data.NotProcessed {
		o.Data = &data
	}
	return o
}

// isRefusal reports whether an error code says that no method was executed.
func isRefusal(code int) bool {
	return code == parseError || code == invalidRequest || code == unknownMethod
}

// fit reports whether details are within the limits.
func fit(details []yodel.Detail) bool {
	n := 0
	for _, d := range details {
		n += len(d.Type) + len(d.Value)
	}
	return len(details) <= maxDetails && n <= maxDetailBytes
}

// ErrorOf returns the error for the member "error" of a reply of version 2.0.
func ErrorOf(b []byte) *yodel.Error {
	var o struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	if json.Unmarshal(b, &o) != nil {
		return &yodel.Error{Code: yodel.Unknown, Message: clip(string(b))}
	}
	e := &yodel.Error{Code: codeFor(o.Code), Message: clip(o.Message), NotProcessed: isRefusal(o.Code)}
	var data errorData
	if json.Unmarshal(o.Data, &data) != nil || data.Code == 0 { // it is not from yodel
		return e
	}
	e.Code, e.ID, e.NotProcessed = data.Code, clip(data.ID), e.NotProcessed || data.NotProcessed
	if fit(data.Details) {
		e.Details = data.Details
	}
	const most = int64(24 * time.Hour / time.Millisecond)
	e.RetryAfter = time.Duration(min(max(data.RetryAfterMs, 0), most)) * time.Millisecond
	return e
}

// codeFor returns the yodel.Code for an error code. For one that is not in the table, it is
// Unknown.
func codeFor(code int) yodel.Code {
	switch code {
	case unknownMethod:
		return yodel.Unimplemented
	case invalidParams, invalidRequest, parseError:
		return yodel.InvalidArgument
	case internalError:
		return yodel.Internal
	}
	if c := firstCode - code; c >= int(yodel.Canceled) && c <= int(yodel.Unauthenticated) {
		return yodel.Code(c)
	}
	return yodel.Unknown
}

// ErrorOfText returns the error for the member "error" of a reply of version 1.0. If its text
// begins with the name of a code, as the texts of yodel servers do, the error has that code.
func ErrorOfText(b []byte) *yodel.Error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		text = string(b)
	}
	return errortext.Parse(clip(text))
}

// clip cuts a text that came from a peer.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}
