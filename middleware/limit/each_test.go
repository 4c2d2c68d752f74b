// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/rate"
)

// panicking has the value with which a handler panics.
const panicking = "the handler panics"

func TestEachCountsTheRunningCallsOfAKey(t *testing.T) {
	each := limit.Each(2, rate.Tenant)
	refused := func(err error) bool {
		e, ok := err.(*yodel.Error)
		return ok && e.Code == yodel.ResourceExhausted && e.ID == "YDL3201" && e.NotProcessed
	}
	var h yodel.Handler
	depth := 0
	h = each(func(ctx context.Context, call *yodel.Call) error { // it calls itself: all of these calls run at the same time
		depth++
		defer func() { depth-- }()
		switch {
		case call.Method == "panics":
			panic(panicking)
		case depth < 3:
			return h(ctx, call)
		}
		return nil
	})
	for name, test := range map[string]struct {
		call    yodel.Call
		refused bool
	}{
		"the third call of a tenant":     {yodel.Call{Method: "A", Tenant: "a"}, true},
		"a call of a built-in method":    {yodel.Call{Method: "yodel.Ping", Tenant: "a"}, false},
		"an ordered call of a client":    {yodel.Call{Method: "A", Tenant: "a", Ordered: true}, false},
		"the third call without tenant":  {yodel.Call{Method: "A"}, true},
		"the same, after all have ended": {yodel.Call{Method: "A", Tenant: "a"}, true},
	} {
		if err := h(t.Context(), &test.call); refused(err) != test.refused || err != nil && !test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 3 {
		func() {
			defer func() {
				if recover() != panicking {
					t.Error("a call whose handler panics keeps its place")
				}
			}()
			_ = h(t.Context(), &yodel.Call{Method: "panics", Tenant: "b"})
		}()
	}
}

// A caller that invents a key for each call makes nothing grow.
func TestEachForgetsTheKeysOfEndedCalls(t *testing.T) {
	h := limit.Each(1, rate.Tenant)(func(context.Context, *yodel.Call) error { return nil })
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range 300_000 {
		if err := h(t.Context(), &yodel.Call{Method: "A", Tenant: "an invented name " + strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if grown := int64(heap()) - int64(before); grown > 4<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	runtime.KeepAlive(h)
}
