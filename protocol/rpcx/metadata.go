// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpkeys"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// all returns the pairs of the metadata. frameReader has checked them.
func (h *head) all() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for rest := h.metadata; rest != ""; {
			key, value, next, err := cutPair(rest)
			if rest = next; err != nil || !yield(key, value) {
				return
			}
		}
	}
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
		case rpcxwire.Obstacle(key, value) != "":
			return "", metakeys.Refused(call.Method, key, rpcxwire.Obstacle(key, value))
		case key == rpcxwire.Authorization:
			key = rpcxwire.KeyAuth
		}
		b = appendPair(b, key, value)
		n++
	}
	parent, state, _ := strings.Cut(call.Trace, " ")
	for _, own := range []struct{ key, value string }{{httpkeys.Idempotency, call.IdempotencyKey}, {httpkeys.TraceParent, parent}, {httpkeys.TraceState, state}} {
		if _, is := call.Metadata[own.key]; !is {
			set(own.key, own.value)
		}
	}
	set(rpcxwire.KeyTimeout, timeLeft(ctx, call))
	set(rpcxwire.KeyAttempt, decimal(max(call.Attempt-1, 0))) // Attempt counts the attempt that is being sent
	set(rpcxwire.KeyBudget, decimal(call.Budget))
	set(rpcxwire.KeyCriticality, decimal(call.Criticality))
	set(rpcxwire.KeyTenant, call.Tenant)
	set(rpcxwire.KeyKey, call.Key)
	if call.Explain {
		set(rpcxwire.KeyExplain, "1")
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

// errorMetadata appends the metadata of an error. The text alone says all of an error that has only
// a text, and of those for which rpcx has a text of its own.
func errorMetadata(b []byte, text string, e *yodel.Error) []byte {
	b = appendPair(b, rpcxwire.KeyError, text)
	if _, ok := rpcxwire.Parse(text); ok {
		return b
	}
	if e.Code != yodel.Unknown || e.ID != "" { // otherwise the text is unchanged
		b = appendPair(b, rpcxwire.KeyErrorCode, e.Code.String())
	}
	if e.ID != "" {
		b = appendPair(b, rpcxwire.KeyErrorID, e.ID)
	}
	if e.RetryAfter > 0 {
		b = appendPair(b, rpcxwire.KeyRetryAfter, strconv.FormatInt(int64((e.RetryAfter+time.Millisecond-1)/time.Millisecond), 10))
	}
	if e.NotProcessed {
		b = appendPair(b, rpcxwire.KeyNotProcessed, "1")
	}
	return b
}
