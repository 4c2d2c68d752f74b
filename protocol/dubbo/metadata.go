// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpkeys"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// Keys of attachments that Dubbo gives a meaning.
const (
	keyPath      = "path"
	keyInterface = "interface"
	keyDubbo     = "dubbo" // the version of the protocol
	keyTimeout   = "timeout"
	keyVersion   = "version" // of the interface
	keyGroup     = "group"
)

// Keys of attachments that yodel gives a meaning. Other implementations ignore them.
const (
	keyErrorID      = "yodel-error-id"
	keyErrorCode    = "yodel-error-code" // a name such as not_found
	keyRetryAfter   = "yodel-retry-after-ms"
	keyAttempt      = "yodel-attempt"
	keyBudget       = "yodel-budget"
	keyCriticality  = "yodel-criticality"
	keyTenant       = "yodel-tenant"
	keyKey          = "yodel-key"
	keyExplain      = "yodel-explain" // "1"
	mostMillisecond = math.MaxInt64 / int64(time.Millisecond)
)

// obstacle returns why Dubbo cannot carry a pair of metadata, or "".
func obstacle(key, value string) string {
	switch {
	case reserved(key):
		return "the key is reserved in Dubbo"
	case !utf8.ValidString(key):
		return "the key is not UTF-8"
	case !utf8.ValidString(value):
		return "the value is not UTF-8"
	}
	return ""
}

// reserved reports whether a key is one that this package sets, so that it is not metadata of a
// caller or a handler.
func reserved(key string) bool {
	switch key {
	case keyPath, keyInterface, keyDubbo, keyTimeout:
		return true
	}
	return metakeys.Reserved(key)
}

// maxAttachments is how many bytes encoded attachments may have, so that decoding them takes little
// memory: twice the limit of the metadata, and room for the beginnings of the values.
func maxAttachments(limits yodel.Limits) int { return 2*limits.MaxMetadata + 16*limits.MaxPairs }

// describe sets the fields of a call from the attachments of a request. A deadline counts from now.
func describe(call *yodel.Call, attachments any, now time.Time, limits yodel.Limits) *yodel.Error {
	pairs, err := texts(attachments)
	if err != nil {
		return notSent(yodel.InvalidArgument, "YDL2101", "%s: %v", call.Method, err)
	}
	size := 0
	for key, value := range pairs {
		size += len(key) + len(value)
	}
	if size > limits.MaxMetadata || len(pairs) > limits.MaxPairs {
		return notSent(yodel.ResourceExhausted, "YDL2203", "%s: the attachments have %d bytes in %d pairs; the server's limits are %d and %d",
			call.Method, size, len(pairs), limits.MaxMetadata, limits.MaxPairs)
	}
	for key, value := range pairs {
		if control(call, key, value, now) {
			continue
		}
		if call.Metadata == nil {
			call.Metadata = make(yodel.Metadata, len(pairs))
		}
		call.Metadata[key] = value
	}
	httpkeys.Read(call)
	return nil
}

// texts returns attachments as texts.
func texts(attachments any) (map[string]string, error) {
	if attachments == nil {
		return nil, nil //nolint:nilnil // there is none, which is not an error
	}
	all, ok := attachments.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the attachments are a %T, not a map with strings as keys", attachments)
	}
	pairs := make(map[string]string, len(all))
	for key, value := range all {
		switch value := value.(type) {
		case nil:
		case string:
			pairs[key] = value
		case bool, int32, int64, float64:
			pairs[key] = fmt.Sprint(value)
		default:
			return nil, fmt.Errorf("the attachment %.100q is a %T, and metadata has only texts", key, value)
		}
	}
	return pairs, nil
}

// control sets the field of a call for which a key stands. It reports false if the key belongs into
// the metadata of the call.
func control(call *yodel.Call, key, value string, now time.Time) bool {
	switch key {
	case keyPath, keyInterface, keyDubbo: // other parts of the request have them
	case keyTimeout:
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil && ms > 0 && ms <= mostMillisecond {
			call.Deadline = now.Add(time.Duration(ms) * time.Millisecond)
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

// requestPairs returns the attachments of a request to an instance. It fails if the caller has set
// a reserved key, or if the result exceeds the limits.
func requestPairs(ctx context.Context, call *yodel.Call, in yodel.Instance, limits yodel.Limits) (pairs [][2]string, e *yodel.Error) {
	set := func(key, value string) {
		if _, is := call.Metadata[key]; value != "" && !is {
			pairs = append(pairs, [2]string{key, value})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(call.Metadata)) {
		if why := obstacle(key, call.Metadata[key]); why != "" {
			return nil, metakeys.Refused(call.Method, key, why)
		}
		pairs = append(pairs, [2]string{key, call.Metadata[key]})
	}
	parent, state, _ := strings.Cut(call.Trace, " ")
	service, _ := split(call.Method)
	set(keyPath, service)
	set(keyInterface, service)
	set(keyVersion, in.Version)
	set(keyGroup, in.Group)
	set(httpkeys.Idempotency, call.IdempotencyKey)
	set(httpkeys.TraceParent, parent)
	set(httpkeys.TraceState, state)
	set(keyTimeout, timeLeft(ctx, call))
	set(keyAttempt, decimal(max(call.Attempt-1, 0))) // Attempt counts the attempt that is being sent
	set(keyBudget, decimal(call.Budget))
	set(keyCriticality, decimal(call.Criticality))
	set(keyTenant, call.Tenant)
	set(keyKey, call.Key)
	if call.Explain {
		set(keyExplain, "1")
	}
	if n := sizeOf(pairs); n > limits.MaxMetadata || len(pairs) > limits.MaxPairs {
		return nil, notSent(yodel.ResourceExhausted, "YDL2203", "%s: the metadata has %d bytes in %d pairs; this client's limits are %d and %d",
			call.Method, n, len(pairs), limits.MaxMetadata, limits.MaxPairs)
	}
	return pairs, nil
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

// notSent returns the error of a call that cannot be sent, or was not executed.
func notSent(code yodel.Code, id, format string, args ...any) *yodel.Error {
	return &yodel.Error{Code: code, ID: id, NotProcessed: true, Message: fmt.Sprintf(format, args...)}
}

// errorPairs returns the attachments for an error. There are none if the text says all of it.
func errorPairs(e *yodel.Error) (pairs [][2]string) {
	if e.Code != yodel.Unknown || e.ID != "" {
		pairs = append(pairs, [2]string{keyErrorCode, e.Code.String()})
	}
	if e.ID != "" {
		pairs = append(pairs, [2]string{keyErrorID, e.ID})
	}
	if e.RetryAfter > 0 {
		pairs = append(pairs, [2]string{keyRetryAfter, strconv.FormatInt(int64((e.RetryAfter+time.Millisecond-1)/time.Millisecond), 10)})
	}
	return pairs
}
