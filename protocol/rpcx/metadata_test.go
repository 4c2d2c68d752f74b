// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newCall() *yodel.Call { return &yodel.Call{Method: "Arith.Mul"} }

func limits() yodel.Limits { return yodel.Limits{MaxMetadata: 16 << 10, MaxPairs: 128} }

func describe(call *yodel.Call, h *head) { rpcxwire.Describe(call, h.all(), h.pairs, start) }

// What a client says about a call arrives at the server.
func TestMetadataOfRequests(t *testing.T) {
	sent := &yodel.Call{
		Method: "Arith.Mul", Metadata: yodel.Metadata{"color": "blue", "": "", "authorization": "Bearer x", "key": "ünïcödé\x00"},
		Attempt: 3, Budget: 7, Criticality: -2, Tenant: "anna", Key: "cart 5", Explain: true, IdempotencyKey: "once",
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 a=b,c=d", Deadline: time.Now().Add(5 * time.Second),
	}
	encoded, e := requestMetadata(context.Background(), sent, limits())
	if e != nil {
		t.Fatal(e)
	}
	pairs, err := countPairs(encoded)
	if err != nil {
		t.Fatal(err)
	}
	got := newCall()
	describe(got, &head{metadata: encoded, pairs: pairs})
	want := maps.Clone(sent.Metadata)
	want["idempotency-key"] = "once"
	want["traceparent"], want["tracestate"], _ = strings.Cut(sent.Trace, " ")
	if !maps.Equal(got.Metadata, want) {
		t.Errorf("got %q, want %q", got.Metadata, want)
	}
	if got.Attempt != 2 || got.Budget != 7 || got.Criticality != -2 || got.Tenant != "anna" || got.Key != "cart 5" || !got.Explain ||
		got.IdempotencyKey != "once" || got.Trace != sent.Trace {
		t.Errorf("got %+v", got)
	}
	if left := got.Deadline.Sub(start); left > 5*time.Second || left < 4*time.Second {
		t.Errorf("the deadline is in %v", left)
	}
}

// A caller may write keys as in HTTP, in any case. Otherwise its call would be executed twice.
func TestKeysInAnyCase(t *testing.T) {
	call := newCall()
	describe(call, &head{metadata: pairsOf("Idempotency-Key", "once", "Traceparent", "00-1-2-01", "TraceState", "a=b"), pairs: 3})
	if call.IdempotencyKey != "once" || call.Trace != "00-1-2-01 a=b" || call.Metadata["Idempotency-Key"] != "once" {
		t.Errorf("got the key %q and the trace %q of %q", call.IdempotencyKey, call.Trace, call.Metadata)
	}
}

func TestDeadlines(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": -1, "x": -1, "1.5": -1, "9223372036854775807": -1, "99999999999999999999": -1, "1": time.Millisecond, "5000": 5 * time.Second, "0": 0, "-5": 0,
	} {
		call := newCall()
		describe(call, &head{metadata: pairsOf(rpcxwire.KeyTimeout, value), pairs: 1})
		if got := call.Deadline; want < 0 && !got.IsZero() || want >= 0 && got.Sub(start) != want {
			t.Errorf("%q: got %v, want %v later than the start", value, got, want)
		}
	}
}

// The last of several pairs with one key counts, as in rpcx.
func TestDuplicateKeys(t *testing.T) {
	call := newCall()
	describe(call, &head{metadata: pairsOf("k", "1", "k", "2"), pairs: 2})
	if call.Metadata["k"] != "2" {
		t.Errorf("got %q", call.Metadata)
	}
}

func TestMetadataThatCannotBeSent(t *testing.T) {
	many := make(yodel.Metadata)
	for i := range 129 {
		many[strings.Repeat("k", i)] = ""
	}
	for name, test := range map[string]struct {
		metadata yodel.Metadata
		id, says string
	}{
		"an error":       {yodel.Metadata{rpcxwire.KeyError: "x"}, "YDL2103", `"__rpcx_error__"`},
		"a timeout":      {yodel.Metadata{rpcxwire.KeyTimeout: "5"}, "YDL2103", `"__ServerTimeout"`},
		"__AUTH":         {yodel.Metadata{rpcxwire.KeyAuth: "x"}, "YDL2103", `"__AUTH"`},
		"an own key":     {yodel.Metadata{"yodel-tenant": "x"}, "YDL2103", `"yodel-tenant"`},
		"a large value":  {yodel.Metadata{"x": strings.Repeat("x", 16<<10)}, "YDL2203", "16384"},
		"too many pairs": {many, "YDL2203", "129 pairs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, e := requestMetadata(context.Background(), &yodel.Call{Method: "Arith.Mul", Metadata: test.metadata}, limits())
			if e == nil || e.ID != test.id || !e.NotProcessed || !strings.Contains(e.Message, test.says) {
				t.Errorf("got %v", e)
			}
		})
	}
}

// An error arrives at a client as the server has it.
func TestErrorsOnTheWire(t *testing.T) {
	for _, sent := range []*yodel.Error{
		{Code: yodel.Unknown, Message: "boom"},
		{Code: yodel.Unknown, Message: " not trimmed\n"},
		{Code: yodel.Unknown, Message: "boom", ID: "APP1"},
		{Code: yodel.Unknown, Message: "boom", NotProcessed: true},
		{Code: yodel.NotFound, Message: "no cart"},
		{Code: yodel.NotFound, Message: "not_found: twice"},
		{Code: yodel.Unavailable, Message: "full", ID: "YDL3002", NotProcessed: true, RetryAfter: 1500 * time.Millisecond},
		{Code: yodel.Internal, Message: strings.Repeat("long ", 500)},
		{Code: yodel.Internal, Message: "x"},
	} {
		encoded := errorMetadata(nil, rpcxwire.Text(sent), sent)
		pairs := make(map[string]string)
		for rest := string(encoded); rest != ""; {
			var key, value string
			var err error
			if key, value, rest, err = cutPair(rest); err != nil {
				t.Fatal(err)
			}
			pairs[key] = value
		}
		got := errorOf(pairs)
		if got.Code != sent.Code || got.Message != sent.Message || got.ID != sent.ID || got.NotProcessed != sent.NotProcessed || got.RetryAfter != sent.RetryAfter {
			t.Errorf("%+v becomes %+v (%q)", sent, got, pairs)
		}
	}
}

func TestErrorsOfOtherServers(t *testing.T) {
	for text, want := range map[string]yodel.Error{
		"boom":                         {Code: yodel.Unknown, Message: "boom"},
		"context deadline exceeded":    {Code: yodel.DeadlineExceeded, Message: "context deadline exceeded"},
		"context canceled":             {Code: yodel.Canceled, Message: "context canceled"},
		"rpcx: can't find service X":   {Code: yodel.Unimplemented, Message: "rpcx: can't find service X", ID: "YDL2001", NotProcessed: true},
		"rpcx: can't find method Nope": {Code: yodel.Unimplemented, Message: "rpcx: can't find method Nope", ID: "YDL2002", NotProcessed: true},
		"can not find codec for 9":     {Code: yodel.Unimplemented, Message: "can not find codec for 9", ID: "YDL2003", NotProcessed: true},
	} {
		got := errorOf(map[string]string{rpcxwire.KeyError: text})
		if got.Code != want.Code || got.Message != want.Message || got.ID != want.ID || got.NotProcessed != want.NotProcessed {
			t.Errorf("%q: got %+v", text, got)
		}
	}
	for _, metadata := range []map[string]string{nil, {rpcxwire.KeyError: ""}, {"yodel-error-code": "nonsense"}, {"yodel-error-code": "ok", "yodel-retry-after-ms": "-5"}, {"yodel-retry-after-ms": "18446744073709551615"}} {
		if got := errorOf(metadata); got.Code != yodel.Unknown || got.Message == "" || got.RetryAfter != 0 {
			t.Errorf("%q: got %+v", metadata, got)
		}
		if !errors.Is(errorOf(metadata), yodel.Unknown) {
			t.Errorf("%q: the error is not Unknown", metadata)
		}
	}
}
