// SPDX-License-Identifier: Apache-2.0

package keyscope_test

import (
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/keyscope"
)

func TestWhyACallIsNotSentAgain(t *testing.T) {
	const (
		keyless  = "the method is not declared idempotent, and the call has no idempotency key"
		streamed = "what went over a stream is not remembered for its idempotency key"
		alone    = "no other endpoint shares the memory of idempotency keys of a:1"
	)
	held := func(keep time.Duration) *keyscope.Hold {
		h := new(keyscope.Hold)
		h.Claim(keyscope.Attempt{Scope: keyscope.Scope{Name: "redis", Keep: keep}, Addr: "a:1"}, false)
		return h
	}
	open, forgotten, empty := held(time.Hour), held(time.Second), new(keyscope.Hold)
	for _, test := range []struct {
		call   keyscope.Repeat
		shared bool
		want   string
	}{
		{keyscope.Repeat{Begun: true, Harmless: true, Streams: true}, true, "messages of its stream have been sent"},
		{keyscope.Repeat{Overtaken: true, Harmless: true}, true, "a later call with its order key may have been executed"},
		{keyscope.Repeat{Harmless: true, Hold: open, Failed: true}, false, ""},
		{keyscope.Repeat{Failed: true, Unsent: true}, false, ""},
		{keyscope.Repeat{Failed: true}, true, keyless},
		{keyscope.Repeat{}, true, keyless},
		{keyscope.Repeat{Failed: true, Keyed: true, Streams: true}, true, streamed},
		{keyscope.Repeat{Failed: true, Keyed: true, ToPeer: true}, true, "an idempotency key does not make a call to a peer repeatable"},
		{keyscope.Repeat{Failed: true, Keyed: true}, false, ""},

		{keyscope.Repeat{Hold: open, Failed: true, Unsent: true, Refused: "so it is"}, true, "so it is"},
		{keyscope.Repeat{Hold: empty, Fork: true}, true, "the first attempt has not been sent, so nobody knows where its idempotency key will be remembered"},
		{keyscope.Repeat{Hold: empty, Fork: true, Failed: true}, false, ""},
		{keyscope.Repeat{Hold: empty}, false, ""},
		{keyscope.Repeat{Hold: open, Failed: true, Streams: true}, true, streamed},
		{keyscope.Repeat{Hold: forgotten, Failed: true}, true, "a:1 remembers an idempotency key for 1s only"},
		{keyscope.Repeat{Hold: open, Failed: true, Ended: true}, false, ""},
		{keyscope.Repeat{Hold: open, Failed: true}, true, ""},
		{keyscope.Repeat{Hold: open, Failed: true}, false, alone + ", which cannot be reached"},
		{keyscope.Repeat{Hold: open}, true, ""},
		{keyscope.Repeat{Hold: open}, false, alone},
	} {
		got := test.call.Barred(time.Minute, func(first *keyscope.Attempt) bool { return test.shared && first.Name == "redis" })
		if got != test.want {
			t.Errorf("%+v, shared %v:\n got %q\nwant %q", test.call, test.shared, got, test.want)
		}
	}
}
