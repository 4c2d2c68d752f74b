// SPDX-License-Identifier: Apache-2.0

package outlier_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/outlier"
)

// Callers that give a healthy server less time than it needs do not eject it for others. A server
// that hangs is ejected by callers that wait as long as is usual.
func TestImpatientCallersDoNotEject(t *testing.T) {
	for _, warm := range []bool{false, true} {
		for _, ordered := range []bool{false, true} {
			t.Run(fmt.Sprintf("warm %t, ordered %t", warm, ordered), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { impatientCallers(t, warm, ordered) })
			})
		}
	}
}

func impatientCallers(t *testing.T, warm, ordered bool) {
	var hangs atomic.Bool
	c := stub(t, 3, nil, func(ctx context.Context, i int, _ *yodel.Call) error {
		takes := 20 * time.Millisecond
		if i == 0 && hangs.Load() {
			takes = time.Hour
		}
		select {
		case <-time.After(takes):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err := c.Call(t.Context(), string(work), &struct{}{}, nil); err != nil { // resolves the endpoints
		t.Fatal(err)
	}
	call := func(ep *yodel.Endpoint, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return c.Do(ctx, &yodel.Call{Method: string(work), Args: &struct{}{}, Endpoint: ep, Ordered: ordered})
	}
	all := c.Endpoints()
	var first *yodel.Endpoint
	for _, ep := range all {
		if ep.Addr() == "0" {
			first = ep
		}
		for range 20 {
			if err := call(ep, time.Second); warm && err != nil {
				t.Fatal(err)
			}
			if !warm {
				break
			}
		}
	}
	for i := range 100 {
		if err := call(first, 2*time.Millisecond); err == nil {
			t.Fatal("2 ms were enough")
		}
		if isOut(first) {
			t.Fatalf("%d impatient callers ejected a healthy endpoint", i+1)
		}
	}
	hangs.Store(true)
	for range 100 { // 30 ms is more than the usual 20 ms
		_ = call(first, 30*time.Millisecond)
		for _, ep := range all[1:] {
			_ = call(ep, 30*time.Millisecond)
		}
		if isOut(first) {
			return
		}
	}
	t.Error("an endpoint that hangs was not ejected")
}

// TestReasonOfHangingCalls freezes an endpoint whose calls took a little longer than those of the
// others: it is ejected because its calls hang.
func TestReasonOfHangingCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var frozen atomic.Bool
		reason := ""
		o := &outlier.Options{OnEject: func(_ *yodel.Endpoint, why string, _ time.Duration) {
			if reason == "" {
				reason = why
			}
		}}
		c := stub(t, 3, o, func(ctx context.Context, i int, _ *yodel.Call) error {
			takes := 20 * time.Millisecond
			if i == 0 {
				takes = 24 * time.Millisecond
				if frozen.Load() {
					takes = time.Hour
				}
			}
			select {
			case <-time.After(takes):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		r := rand.New(rand.NewPCG(1, 1))
		load(r, c, 100, 10*time.Second)
		frozen.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 200 {
			go func() { _ = c.Call(ctx, string(work), &struct{}{}, nil) }() // some hang until cancel
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if !strings.Contains(reason, " of its calls hang, those of the others take 2") {
			t.Errorf("it is ejected because %q", reason)
		}
	})
}
