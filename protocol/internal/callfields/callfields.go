// SPDX-License-Identifier: Apache-2.0

// Package callfields carries the fields of calls and errors of yodel as pairs of texts, in
// protocols whose requests and replies have such pairs. Other implementations of these protocols
// ignore them.
package callfields

import (
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpkeys"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// The keys that are the same in all protocols.
const (
	errorCode   = "yodel-error-code" // a name such as not_found
	errorID     = "yodel-error-id"
	retryAfter  = "yodel-retry-after-ms"
	budget      = "yodel-budget"
	criticality = "yodel-criticality"
	tenant      = "yodel-tenant"
	key         = "yodel-key"
	explain     = "yodel-explain" // "1"
)

// Keys are the keys that each protocol names itself.
type Keys struct {
	Timeout string // decimal milliseconds
	Attempt string // how often the request was sent before
}

// Request returns the pairs of an attempt of a call, in the order in which they are sent: the
// metadata, own, and the fields of the call. A field whose key is in the metadata is left out.
// Request fails if obstacle returns why the protocol cannot carry a pair of the metadata.
func Request(ctx context.Context, call *yodel.Call, keys Keys, own [][2]string, obstacle func(key, value string) string) ([][2]string, *yodel.Error) {
	pairs := make([][2]string, 0, len(call.Metadata)+len(own)+4)
	for _, key := range slices.Sorted(maps.Keys(call.Metadata)) {
		value := call.Metadata[key]
		if why := obstacle(key, value); why != "" {
			return nil, metakeys.Refused(call.Method, key, why)
		}
		pairs = append(pairs, [2]string{key, value})
	}
	parent, state, _ := strings.Cut(call.Trace, " ")
	fields := [...][2]string{
		{httpkeys.Idempotency, call.IdempotencyKey},
		{httpkeys.TraceParent, parent},
		{httpkeys.TraceState, state},
		{keys.Timeout, timeLeft(ctx, call)},
		{keys.Attempt, decimal(max(call.Attempt-1, 0))}, // Attempt counts the attempt that is being sent
		{budget, decimal(call.Budget)},
		{criticality, decimal(call.Criticality)},
		{tenant, call.Tenant},
		{key, call.Key},
		{explain, flag(call.Explain)},
	}
	for _, more := range [...][][2]string{own, fields[:]} {
		for _, field := range more {
			if _, is := call.Metadata[field[0]]; field[1] != "" && !is {
				pairs = append(pairs, field)
			}
		}
	}
	return pairs, nil
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

// decimal returns n in decimal, or "" for 0.
func decimal(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func flag(set bool) string {
	if set {
		return "1"
	}
	return ""
}

// Read sets the field of a call for which a key stands, except the deadline. It reports false for
// any other key.
func (k Keys) Read(call *yodel.Call, name, value string) bool {
	switch name {
	case k.Attempt:
		call.Attempt = number(value)
	case budget:
		call.Budget = number(value)
	case criticality:
		if n, err := strconv.ParseInt(value, 10, 32); err == nil {
			call.Criticality = int(n)
		}
	case tenant:
		call.Tenant = value
	case key:
		call.Key = value
	case explain:
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

// Millis parses a time in decimal milliseconds. It reports false for anything else, and for a time
// that a time.Duration cannot hold.
func Millis(value string) (time.Duration, bool) {
	ms, err := strconv.ParseInt(value, 10, 64)
	const most = math.MaxInt64 / int64(time.Millisecond)
	if err != nil || ms > most || ms < -most {
		return 0, false
	}
	return time.Duration(ms) * time.Millisecond, true
}

// ErrorPairs returns the pairs of an error. There are none if the text of the error says all of it.
func ErrorPairs(e *yodel.Error) (pairs [][2]string) {
	if e.Code != yodel.Unknown || e.ID != "" {
		pairs = append(pairs, [2]string{errorCode, e.Code.String()})
	}
	if e.ID != "" {
		pairs = append(pairs, [2]string{errorID, e.ID})
	}
	if e.RetryAfter > 0 {
		pairs = append(pairs, [2]string{retryAfter, strconv.FormatInt(int64((e.RetryAfter+time.Millisecond-1)/time.Millisecond), 10)})
	}
	return pairs
}

// ReadError returns the error that a server sent with a text and pairs. Code is that of an error
// whose pairs do not have the code. Own reports whether they do, as those of a server of yodel: the
// text has the code and the ID too, and the message of e is without them.
func ReadError(text string, code yodel.Code, pairs map[string]string) (e *yodel.Error, own bool) {
	e = &yodel.Error{Code: code, ID: pairs[errorID]}
	name := pairs[errorCode]
	if own = name != ""; own {
		if err := e.Code.UnmarshalText([]byte(name)); err != nil || e.Code == 0 {
			e.Code = yodel.Unknown
		}
		text = strings.TrimPrefix(text, name+": ")
	}
	if e.ID != "" {
		text = strings.TrimSuffix(text, " ["+e.ID+"]")
	}
	if d, ok := Millis(pairs[retryAfter]); ok && d > 0 {
		e.RetryAfter = d
	}
	e.Message = text
	return e, own
}
