// SPDX-License-Identifier: Apache-2.0

package httpwire

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// statuses are the HTTP statuses of the codes, from the specification of Connect.
var statuses = [...]int{
	yodel.Canceled: 499, yodel.Unknown: 500, yodel.InvalidArgument: 400, yodel.DeadlineExceeded: 504, yodel.NotFound: 404,
	yodel.AlreadyExists: 409, yodel.PermissionDenied: 403, yodel.ResourceExhausted: 429, yodel.FailedPrecondition: 400,
	yodel.Aborted: 409, yodel.OutOfRange: 400, yodel.Unimplemented: 501, yodel.Internal: 500, yodel.Unavailable: 503,
	yodel.DataLoss: 500, yodel.Unauthenticated: 401,
}

// Status returns the HTTP status of a code.
func Status(c yodel.Code) int {
	if int(c) < len(statuses) && statuses[c] != 0 {
		return statuses[c]
	}
	return http.StatusInternalServerError
}

// CodeOf returns the code for an HTTP status that came without a code, from the specifications of
// gRPC and Connect.
func CodeOf(status int) yodel.Code {
	switch status {
	case http.StatusBadRequest:
		return yodel.Internal
	case http.StatusUnauthorized:
		return yodel.Unauthenticated
	case http.StatusForbidden:
		return yodel.PermissionDenied
	case http.StatusNotFound:
		return yodel.Unimplemented
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return yodel.Unavailable
	}
	return yodel.Unknown
}

// headerCode has the number of an error's code, if the protocol has another one for the error.
const headerCode = "Yodel-Code"

// SetError adds what h says about a failed call beside the code that the protocol sends: the ID of
// the error, whether the method was executed, when to try again, and the error's own code if it is
// another one.
func SetError(h http.Header, prefix string, e *yodel.Error, sent yodel.Code) {
	if e.Code != sent {
		h[prefix+headerCode] = []string{strconv.Itoa(int(e.Code))}
	}
	if e.ID != "" {
		h[prefix+headerErrorID] = []string{e.ID}
	}
	if e.NotProcessed {
		h[prefix+headerNotProcessed] = []string{"1"}
	}
	if e.RetryAfter > 0 {
		h[prefix+headerPushback] = []string{strconv.FormatInt(int64((e.RetryAfter+time.Millisecond-1)/time.Millisecond), 10)}
	}
}

// GetError sets the fields of an error that SetError has added to h.
func GetError(h http.Header, e *yodel.Error) {
	e.ID, e.NotProcessed = h.Get(headerErrorID), h.Get(headerNotProcessed) == "1"
	if c, err := strconv.ParseUint(h.Get(headerCode), 10, 8); err == nil && c > 0 && c <= uint64(yodel.Unauthenticated) {
		e.Code = yodel.Code(c)
	}
	if ms, err := strconv.ParseInt(h.Get(headerPushback), 10, 40); err == nil && ms > 0 {
		e.RetryAfter = time.Duration(ms) * time.Millisecond
	}
}

// EscapeMessage encodes the header grpc-message: bytes other than printable ASCII, and "%", become
// "%XX".
func EscapeMessage(message string) string {
	const hex = "0123456789ABCDEF"
	var b []byte
	for i := range len(message) {
		c := message[i]
		if c >= ' ' && c <= '~' && c != '%' {
			if b != nil {
				b = append(b, c)
			}
			continue
		}
		if b == nil {
			b = append(make([]byte, 0, len(message)+16), message[:i]...)
		}
		b = append(b, '%', hex[c>>4], hex[c&15])
	}
	if b == nil {
		return message
	}
	return string(b)
}

// UnescapeMessage decodes the header grpc-message. It leaves malformed parts as they are.
func UnescapeMessage(message string) string {
	var b []byte
	for i := 0; i < len(message); i++ {
		if message[i] == '%' && i+2 < len(message) {
			if n, err := strconv.ParseUint(message[i+1:i+3], 16, 8); err == nil {
				b = append(b, byte(n))
				i += 2
				continue
			}
		}
		b = append(b, message[i])
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
