// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Keys of metadata that rpcx gives a meaning.
const (
	keyAuth    = "__AUTH"
	keyTimeout = "__ServerTimeout" // decimal milliseconds
	keyError   = "__rpcx_error__"
	keyAddress = "__ServerAddress" // rpcx clients set it in what they received
)

// Keys of metadata that yodel gives a meaning. Other implementations ignore them.
const (
	keyErrorID      = "yodel-error-id"
	keyErrorCode    = "yodel-error-code" // a name such as not_found
	keyRetryAfter   = "yodel-retry-after-ms"
	keyNotProcessed = "yodel-not-processed" // "1"
	keyAttempt      = "grpc-previous-rpc-attempts"
	keyBudget       = "yodel-budget"
	keyCriticality  = "yodel-criticality"
	keyTenant       = "yodel-tenant"
	keyKey          = "yodel-key"
	keyExplain      = "yodel-explain" // "1"
	keyIdempotency  = "idempotency-key"
	keyTraceParent  = "traceparent"
	keyTraceState   = "tracestate"

	authorization = "authorization" // the key of keyAuth in yodel.Metadata
)

// reserved reports whether a key is one that this package sets, so that a caller or a handler must
// not set it. Keys of other packages with the prefix "yodel-" are reserved too.
func reserved(key string) bool {
	switch key {
	case keyAuth, keyTimeout, keyError, keyAddress, keyAttempt:
		return true
	}
	return strings.HasPrefix(key, "yodel-")
}

// describe copies the metadata of a request to the fields of a call. A deadline counts from now. A
// time that is 0 or negative has passed, as in rpcx, and a time that is not a number is ignored.
func describe(call *yodel.Call, h *head, now time.Time) {
	rest := h.metadata
	for range h.pairs {
		key, value, next, err := cutPair(rest)
		if err != nil { // frameReader has checked it
			return
		}
		rest = next
		if control(call, key, value, now) {
			continue
		}
		if call.Metadata == nil {
			call.Metadata = make(yodel.Metadata, h.pairs)
		}
		if key == keyAuth {
			key = authorization
		}
		call.Metadata[key] = value
	}
	if parent := call.Metadata[keyTraceParent]; parent != "" {
		call.Trace = parent
		if state := call.Metadata[keyTraceState]; state != "" {
			call.Trace += " " + state
		}
	}
	call.IdempotencyKey = call.Metadata[keyIdempotency]
}

// control sets the field of a call for which a key stands. It reports false if the key belongs into
// the metadata of the call.
func control(call *yodel.Call, key, value string, now time.Time) bool {
	switch key {
	case keyTimeout:
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil && ms <= math.MaxInt64/int64(time.Millisecond) {
			call.Deadline = now.Add(time.Duration(max(ms, 0)) * time.Millisecond)
		}
	case keyAttempt:
		call.Attempt = number(value)
	case keyBudget:
		call.Budget = number(value)
	case keyCriticality:
		if n, err := strconv.ParseInt(value, 10, 32); err == nil {
			call.Criticality = int(n)
		}
	case keyTenant:
		call.Tenant = value
	case keyKey:
		call.Key = value
	case keyExplain:
		call.Explain = value == "1"
	default:
		return false
	}
	return true
}

// number returns a decimal number that is not negative, or 0.
func number(value string) int {
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// requestMetadata returns the encoded metadata of a request. It fails if the caller has set a
// reserved key, or if the result exceeds the limits.
func requestMetadata(ctx context.Context, call *yodel.Call, limits yodel.Limits) (string, *yodel.Error) {
	var b []byte
	n := 0
	set := func(key, value string) {
		if value != "" {
			b = appendPair(b, key, value)
			n++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(call.Metadata)) {
		value := call.Metadata[key]
		switch {
		case reserved(key):
			return "", notSent(yodel.InvalidArgument, "YDL2103", "%s: the metadata has the key %q, which is reserved in rpcx", call.Method, key)
		case key == authorization:
			key = keyAuth
		}
		b = appendPair(b, key, value)
		n++
	}
	parent, state, _ := strings.Cut(call.Trace, " ")
	for _, own := range []struct{ key, value string }{{keyIdempotency, call.IdempotencyKey}, {keyTraceParent, parent}, {keyTraceState, state}} {
		if _, is := call.Metadata[own.key]; !is {
			set(own.key, own.value)
		}
	}
	set(keyTimeout, timeLeft(ctx, call))
	set(keyAttempt, decimal(max(call.Attempt-1, 0))) // Attempt counts the attempt that is being sent
	set(keyBudget, decimal(call.Budget))
	set(keyCriticality, decimal(call.Criticality))
	set(keyTenant, call.Tenant)
	set(keyKey, call.Key)
	if call.Explain {
		set(keyExplain, "1")
	}
	if len(b) > limits.MaxMetadata || n > limits.MaxPairs {
		return "", notSent(yodel.ResourceExhausted, "YDL2203", "%s: the metadata has %d bytes in %d pairs; this client's limits are %d and %d",
			call.Method, len(b), n, limits.MaxMetadata, limits.MaxPairs)
	}
	return string(b), nil
}

// decimal returns n in decimal, or "" for 0.
func decimal(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// timeLeft returns the time until the earlier deadline of ctx and call in milliseconds, or "". It
// is at least one.
func timeLeft(ctx context.Context, call *yodel.Call) string {
	at, ok := ctx.Deadline()
	if !call.Deadline.IsZero() && (!ok || call.Deadline.Before(at)) {
		at, ok = call.Deadline, true
	}
	if !ok {
		return ""
	}
	return strconv.FormatInt(max(time.Until(at).Milliseconds(), 1), 10)
}

// notSent returns the error of a call that cannot be sent.
func notSent(code yodel.Code, id, format string, args ...any) *yodel.Error {
	return &yodel.Error{Code: code, ID: id, NotProcessed: true, Message: fmt.Sprintf(format, args...)}
}

// replyMetadata appends the metadata that a handler has set for its reply.
func replyMetadata(b []byte, call *yodel.Call) ([]byte, error) {
	header, trailer := call.Header(), call.Trailer
	for _, md := range []yodel.Metadata{header, trailer} {
		for key, value := range md {
			if reserved(key) {
				return nil, fmt.Errorf("the metadata of the reply has the key %q, which is reserved in rpcx", key)
			}
			b = appendPair(b, key, value)
		}
	}
	return b, nil
}

// errorMetadata appends the metadata of an error. The text alone says all of an error that has only
// a text, and of those for which rpcx has a text of its own.
func errorMetadata(b []byte, text string, e *yodel.Error) []byte {
	b = appendPair(b, keyError, text)
	if _, ok := textErrors(text); ok {
		return b
	}
	if e.Code != yodel.Unknown || e.ID != "" { // otherwise the text is unchanged
		b = appendPair(b, keyErrorCode, e.Code.String())
	}
	if e.ID != "" {
		b = appendPair(b, keyErrorID, e.ID)
	}
	if e.RetryAfter > 0 {
		b = appendPair(b, keyRetryAfter, strconv.FormatInt(int64((e.RetryAfter+time.Millisecond-1)/time.Millisecond), 10))
	}
	if e.NotProcessed {
		b = appendPair(b, keyNotProcessed, "1")
	}
	return b
}
