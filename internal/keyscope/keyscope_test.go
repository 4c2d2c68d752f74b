// SPDX-License-Identifier: Apache-2.0

package keyscope_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func TestAClaimNeedsAServerThatRemembersTheKey(t *testing.T) {
	shared, other := keyscope.Scope{Name: "redis", Keep: time.Minute}, keyscope.Scope{Name: "redis2", Keep: time.Minute}
	process, none := keyscope.Scope{Name: keyscope.Process + "1", Keep: time.Minute}, keyscope.Scope{}
	for what, test := range map[string]struct {
		first, second keyscope.Scope
		after         time.Duration
		harmless, ok  bool
		why           string
	}{
		"the same memory":             {first: shared, second: shared, ok: true},
		"another memory":              {first: shared, second: other, why: "no other endpoint shares the memory of idempotency keys of a:1"},
		"another process":             {first: process, second: shared, why: "its idempotency key is remembered by the process at a:1 only"},
		"no memory":                   {first: none, second: none, why: "a:1 does not remember idempotency keys"},
		"a harmless call":             {first: none, second: other, harmless: true, ok: true},
		"just before it is forgotten": {first: shared, second: shared, after: time.Minute - 1, ok: true},
		"when it is forgotten":        {first: shared, second: shared, after: time.Minute, why: "a:1 remembers an idempotency key for 1m0s only"},
	} {
		var h keyscope.Hold
		began := 5 * time.Second
		if _, ok := h.Claim(keyscope.Attempt{Scope: test.first, Addr: "a:1", At: began}, false); !ok {
			t.Errorf("%s: the first attempt was refused", what)
		}
		first, ok := h.Claim(keyscope.Attempt{Scope: test.second, Addr: "b:2", At: began + test.after}, test.harmless)
		why := first.Forgotten(began + test.after)
		if why == "" {
			why = first.Alone()
		}
		if ok != test.ok || !ok && why != test.why {
			t.Errorf("%s: got %v, %q, want %v, %q", what, ok, why, test.ok, test.why)
		}
	}
}

func TestAReleasedClaimHoldsNothing(t *testing.T) {
	var none *keyscope.Hold
	none.Release()
	var h keyscope.Hold
	a, b := keyscope.Attempt{Scope: keyscope.Scope{Name: "a"}}, keyscope.Attempt{Scope: keyscope.Scope{Name: "b", Keep: time.Hour}, At: time.Second}
	if _, open := h.First(); open {
		t.Error("a call that was not sent is held")
	}
	h.Claim(a, false)
	h.Release()
	if first, ok := h.Claim(b, false); !ok || first != b {
		t.Errorf("after the release: %v, %v", first, ok)
	}
	if first, open := h.First(); !open || first != b {
		t.Errorf("the first attempt is %v, %v", first, open)
	}
	if why := h.Held(time.Minute); why != b.Alone() {
		t.Errorf("while an attempt is open, the call is held because %q", why)
	}
	h.Release()
	if why := h.Held(time.Minute); why != "" {
		t.Errorf("after the second release, the call is held because %q", why)
	}
}

func TestAServerThatHasNotSpokenMayShareWhatIsNotAProcess(t *testing.T) {
	for name, want := range map[string]bool{"redis": true, keyscope.Process + "1": false, "": false} {
		a := keyscope.Attempt{Scope: keyscope.Scope{Name: name}}
		if got := a.SharedBy(nil); got != want {
			t.Errorf("%q: got %v", name, got)
		}
	}
}

// Of attempts that begin at the same time in different places, only those of one place are sent.
func TestConcurrentClaimsAgree(t *testing.T) {
	for range 100 {
		var h keyscope.Hold
		var sent [2]atomic.Int32
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				place := i % 2
				if _, ok := h.Claim(keyscope.Attempt{Scope: keyscope.Scope{Name: string(rune('a' + place)), Keep: time.Hour}}, false); ok {
					sent[place].Add(1)
				}
			})
		}
		all.Wait()
		if a, b := sent[0].Load(), sent[1].Load(); a+b != 4 || a*b != 0 {
			t.Fatalf("%d attempts were sent to one place and %d to another", a, b)
		}
	}
}

// A time before the settings arrived is negative, and one at the same moment is not 0.
func TestWhenAKeyWasFirstSent(t *testing.T) {
	heard := time.Hour
	for since, want := range map[time.Duration]uint64{0: 1, time.Microsecond: 2, -time.Microsecond: 1, time.Second: 2e6, -time.Second: 2e6 - 1} {
		a := keyscope.Attempt{At: heard + since}
		if got := a.Began(heard); got != want {
			t.Errorf("%v after the settings: got %d, want %d", since, got, want)
		}
	}
}

func TestALongNameIsHashed(t *testing.T) {
	long := strings.Repeat("a", wire.MaxKeyScope)
	if got := keyscope.Named(long, time.Hour); got.Name != long || got.Keep != time.Hour {
		t.Errorf("got %v", got)
	}
	if got := keyscope.Named(long+"a", time.Hour); len(got.Name) != len("sha256:")+64 || got == keyscope.Named(long+"b", time.Hour) {
		t.Errorf("got %v", got)
	}
}

func TestARefusedCallMayHaveBeenExecuted(t *testing.T) {
	f := keyscope.Refuse("Shop.Buy", "it is forgotten")
	refused, ok := errors.AsType[*keyscope.Refusal](f)
	if !ok || refused.Why != "it is forgotten" || refused.Error() != refused.Why || f.Unprocessed || f.ID != "YDL1010" {
		t.Errorf("got %+v, caused by %v", f, refused)
	}
	if want := "Shop.Buy: it may have been executed; not sent again: it is forgotten"; f.Error() != want {
		t.Errorf("got %s, want %s", f, want)
	}
}
