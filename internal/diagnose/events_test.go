// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

func TestEarlyKeepsTheLastEvents(t *testing.T) {
	var early diagnose.Early
	for i := range 100 {
		early.Add(introspect.Event{Kind: "rule", Object: fmt.Sprint(i), What: strings.Repeat("long ", 200)})
	}
	events := early.Take()
	if len(events) != 64 || events[0].Object != "36" || events[63].Object != "99" {
		t.Errorf("got %d events", len(events))
	}
	for _, e := range events {
		if e.At.IsZero() || len(e.What) > 300 {
			t.Fatalf("the event has no time, or a text of %d bytes", len(e.What))
		}
	}
	if again := early.Take(); again != nil {
		t.Errorf("%d events were taken twice", len(again))
	}
}

func TestMethodCountsAreBounded(t *testing.T) {
	var counts diagnose.MethodCounts
	for i := range 3000 {
		var kept atomic.Pointer[stats.Calls]
		counts.For(&kept, fmt.Sprint("Invented", i), 12).End(0, 12)
		if final := kept.Load() != nil; i < 500 != final {
			t.Fatalf("method %d: final is %v", i, final)
		}
	}
	for i := range 3000 {
		var kept atomic.Pointer[stats.Calls]
		n := counts.For(&kept, fmt.Sprint("Known", i), 0)
		n.End(0, 0)
		if counts.For(nil, fmt.Sprint("Known", i), 0) != n || counts.For(&kept, "", 0) != n {
			t.Fatalf("method %d has other counters each time", i)
		}
	}
	all, sum := counts.All(), uint64(0)
	for i, m := range all {
		sum += m.Calls
		if i > 0 && all[i-1].Name >= m.Name {
			t.Errorf("%s stands before %s", all[i-1].Name, m.Name)
		}
	}
	if len(all) != 1001 || sum != 6000 {
		t.Errorf("%d calls of %d methods", sum, len(all))
	}
}
