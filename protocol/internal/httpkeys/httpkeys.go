// SPDX-License-Identifier: Apache-2.0

// Package httpkeys has the keys of metadata under which fields of a call travel in protocols other
// than HTTP, and that are headers in HTTP. HTTP ignores the case of a header, so callers that know
// such a header may write its key in any case.
package httpkeys

import (
	"strings"

	"github.com/yodel-rpc/yodel"
)

// The keys that a server of yodel reads and a client of yodel sends.
const (
	Idempotency = "idempotency-key"
	TraceParent = "traceparent"
	TraceState  = "tracestate"
)

// Read sets the idempotency key and the trace of a call from its metadata.
func Read(call *yodel.Call) {
	if parent := find(call.Metadata, TraceParent); parent != "" {
		call.Trace = parent
		if state := find(call.Metadata, TraceState); state != "" {
			call.Trace += " " + state
		}
	}
	call.IdempotencyKey = find(call.Metadata, Idempotency)
}

// find returns the value of a key in any case. The key in lower case is preferred to other
// spellings.
func find(md yodel.Metadata, key string) string {
	value, exact := md[key]
	if exact {
		return value
	}
	found := ""
	for other, its := range md {
		if len(other) == len(key) && (found == "" || other < found) && strings.EqualFold(other, key) {
			found, value = other, its
		}
	}
	return value
}
