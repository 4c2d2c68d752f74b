// SPDX-License-Identifier: Apache-2.0

// Package linkerror has the errors with which the Do of a yodel.Link says what became of a call.
// docs/plugins.md has the table of what each means to the client.
package linkerror

import (
	"fmt"

	"github.com/yodel-rpc/yodel"
)

// Unsent returns the error of a call of which nothing was sent because of why. The client sends the
// call to another endpoint.
func Unsent(why error) *yodel.Error {
	return &yodel.Error{Code: yodel.Unavailable, NotProcessed: true, Message: why.Error(), Cause: why}
}

// Waited returns the error of a call that waited for another one on the connection to addr, which
// ended meanwhile because of why. The client sends the call again, and does not count 100 of these.
func Waited(call *yodel.Call, addr string, why error) *yodel.Error {
	e := Unsent(why)
	e.ID, e.Message = "YDL1110", fmt.Sprintf("%s: %s: the connection ended while the call waited for another one: %v", call.Method, addr, why)
	return e
}

// Refused returns the error of a call that the Link does not send. It is the outcome of the call.
func Refused(code yodel.Code, id, format string, args ...any) *yodel.Error {
	return &yodel.Error{Code: code, ID: id, NotProcessed: true, Message: fmt.Sprintf(format, args...)}
}

// Lacks returns the error of a call that needs what the protocol of a server does not have.
func Lacks(call *yodel.Call, addr, protocol, what string) *yodel.Error {
	return Refused(yodel.Unimplemented, "", "%s: %s speaks %s, which has no %s", call.Method, addr, protocol, what)
}

// Unencoded returns the error of a call whose arguments cannot be encoded because of why.
func Unencoded(call *yodel.Call, why error) *yodel.Error {
	e := Refused(yodel.InvalidArgument, "YDL2103", "%s: %v", call.Method, why)
	e.Cause = why
	return e
}

// LargeRequest returns the error of a call whose request of n bytes is larger than the limit.
func LargeRequest(call *yodel.Call, n, limit int) *yodel.Error {
	return Refused(yodel.ResourceExhausted, "YDL2201", "%s: the request has %d bytes, this client's limit is %d", call.Method, n, limit)
}

// LargeMetadata returns the error of a call whose metadata has n bytes in the given number of
// pairs, and is beyond the limits.
func LargeMetadata(call *yodel.Call, n, pairs int, limits yodel.Limits) *yodel.Error {
	return Refused(yodel.ResourceExhausted, "YDL2203", "%s: the metadata has %d bytes in %d pairs; this client's limits are %d and %d",
		call.Method, n, pairs, limits.MaxMetadata, limits.MaxPairs)
}

// LargeReply returns the error of a call whose reply from addr was discarded, because it is larger
// than the limit. Size is its number of bytes. Method is "" if the protocol does not say it.
func LargeReply(method, addr, size string, limit int) *yodel.Error {
	if method != "" {
		method += ": "
	}
	return &yodel.Error{
		Code: yodel.ResourceExhausted, ID: "YDL2202",
		Message: fmt.Sprintf("%sthe reply from %s has %s bytes, this client's limit is %d", method, addr, size, limit),
	}
}

// NoMemory returns the error of a call whose reply from addr was discarded, because the client has
// no memory for it.
func NoMemory(addr string) *yodel.Error {
	return &yodel.Error{
		Code: yodel.ResourceExhausted, ID: "YDL3007",
		Message: fmt.Sprintf("this client has no memory left for the reply from %s; the method was executed", addr),
	}
}

// Misfit returns the error of a call whose reply from addr cannot be decoded because of why.
func Misfit(call *yodel.Call, addr string, why error) *yodel.Error {
	return &yodel.Error{
		Code: yodel.Internal, ID: "YDL2102", Cause: why,
		Message: fmt.Sprintf("%s: the reply from %s does not fit %T: %v", call.Method, addr, call.Reply, why),
	}
}
