// SPDX-License-Identifier: Apache-2.0

package callfields_test

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/callfields"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

var keys = callfields.Keys{Timeout: "timeout", Attempt: "attempt"}

func carriesAll(key, _ string) string {
	if strings.HasPrefix(key, "yodel-") {
		return "it is reserved"
	}
	return ""
}

func TestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		call := &yodel.Call{
			Method: "Test.Echo", Metadata: yodel.Metadata{"b": "", "a": "1", "path": "mine", "tracestate": "y=2"},
			Trace: "00-parent x=1", IdempotencyKey: "once", Deadline: time.Now().Add(time.Minute),
			Attempt: 3, Budget: 4, Criticality: -5, Tenant: "anna", Key: "k", Explain: true,
		}
		got, e := callfields.Request(ctx, call, keys, [][2]string{{"path", "/x"}, {"group", ""}, {"version", "1"}}, carriesAll)
		want := [][2]string{
			{"a", "1"}, {"b", ""}, {"path", "mine"}, {"tracestate", "y=2"}, {"version", "1"},
			{"idempotency-key", "once"}, {"traceparent", "00-parent"}, {"timeout", "1500"}, {"attempt", "2"},
			{"yodel-budget", "4"}, {"yodel-criticality", "-5"}, {"yodel-tenant", "anna"}, {"yodel-key", "k"}, {"yodel-explain", "1"},
		}
		if e != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, %v, want %v", got, e, want)
		}
		back := new(yodel.Call)
		for _, pair := range got {
			is := strings.HasPrefix(pair[0], "yodel-") || pair[0] == "attempt"
			if keys.Read(back, pair[0], pair[1]) != is {
				t.Errorf("%s is a field of a call: %t", pair[0], !is)
			}
		}
		if back.Attempt != 2 || back.Budget != 4 || back.Criticality != -5 || back.Tenant != "anna" || back.Key != "k" || !back.Explain {
			t.Errorf("got %+v", back)
		}
		call.Metadata["yodel-key"] = "x"
		if _, e = callfields.Request(ctx, call, keys, nil, carriesAll); e == nil || e.ID != "YDL2103" || !e.NotProcessed {
			t.Errorf("a reserved key: got %v", e)
		}
	})
}

// A deadline that has passed is sent as the shortest time, because a time of 0 means none.
func TestTimeLeft(t *testing.T) {
	got, e := callfields.Request(t.Context(), &yodel.Call{Deadline: time.Now().Add(-time.Hour)}, keys, nil, carriesAll)
	if want := [][2]string{{"timeout", "1"}}; e != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, e, want)
	}
	if got, e = callfields.Request(t.Context(), new(yodel.Call), keys, nil, carriesAll); e != nil || len(got) != 0 {
		t.Errorf("without anything: got %v, %v", got, e)
	}
}

func TestMillis(t *testing.T) {
	for value, want := range map[string]time.Duration{"0": 0, "5": 5 * time.Millisecond, "-5": -5 * time.Millisecond, "9223372036854": 9223372036854 * time.Millisecond} {
		if got, ok := callfields.Millis(value); !ok || got != want {
			t.Errorf("%s: got %v, %t", value, got, ok)
		}
	}
	for _, value := range []string{"", "x", "1.5", "9223372036855", "-9223372036855", "99999999999999999999"} {
		if got, ok := callfields.Millis(value); ok {
			t.Errorf("%s: got %v", value, got)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, sent := range []*yodel.Error{
		{Code: yodel.Unknown, Message: "sold out"},
		{Code: yodel.NotFound, Message: "no order"},
		{Code: yodel.ResourceExhausted, ID: "YDL2201", Message: "too many", RetryAfter: 1500 * time.Millisecond},
	} {
		pairs := make(map[string]string)
		for _, pair := range callfields.ErrorPairs(sent) {
			pairs[pair[0]] = pair[1]
		}
		text := sent.Message
		if len(pairs) > 0 {
			text = sent.Error()
		}
		got, own := callfields.ReadError(text, yodel.Unknown, pairs)
		if got.Code != sent.Code || got.ID != sent.ID || got.Message != sent.Message || got.RetryAfter != sent.RetryAfter || own != (len(pairs) > 0) {
			t.Errorf("sent %+v, got %+v, own %t", sent, got, own)
		}
	}
	for name, pairs := range map[string]map[string]string{
		"another code": {"yodel-error-code": "nonsense"}, "no error": {"yodel-error-code": "ok", "yodel-retry-after-ms": "-5"},
	} {
		if got, _ := callfields.ReadError("text", yodel.Aborted, pairs); got.Code != yodel.Unknown || got.RetryAfter != 0 {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
