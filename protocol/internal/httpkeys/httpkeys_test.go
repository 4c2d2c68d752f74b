// SPDX-License-Identifier: Apache-2.0

package httpkeys_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpkeys"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestReadIgnoresCase(t *testing.T) {
	for _, test := range []struct {
		md         yodel.Metadata
		key, trace string
	}{
		{nil, "", ""},
		{yodel.Metadata{"": "x", "idempotency_key": "x", "idempotency-keys": "x", "tracestate": "x"}, "", ""},
		{yodel.Metadata{"Idempotency-Key": "a", "Traceparent": "b", "TraceState": "c"}, "a", "b c"},
		{yodel.Metadata{"Idempotency-Key": "a", "IDEMPOTENCY-KEY": "b"}, "b", ""},
		{yodel.Metadata{"Idempotency-Key": "a", "idempotency-key": "", "traceparent": "b"}, "", "b"},
	} {
		call := &yodel.Call{Metadata: test.md}
		if httpkeys.Read(call); call.IdempotencyKey != test.key || call.Trace != test.trace {
			t.Errorf("%v: got the key %q and the trace %q, want %q and %q", test.md, call.IdempotencyKey, call.Trace, test.key, test.trace)
		}
	}
}
