// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// TestChanges lists what three clients and the history report about an instance that is tried again
// and again, and about the rules that an operator changes meanwhile.
func TestChanges(t *testing.T) {
	start := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	const bad, other = "10.0.0.7:8972", "10.0.0.8:8972"
	var all []introspect.Event
	add := func(at time.Duration, kind, object, by, what string) {
		all = append(all, introspect.Event{At: start.Add(at), Kind: kind, Object: object, By: by, What: what})
	}
	for client := range 3 {
		for trial := range 5 {
			at := time.Duration(trial)*10*time.Second + time.Duration(client)*20*time.Millisecond
			if trial > 0 {
				add(at, "ready", bad, "outlier", "no longer held back")
			}
			add(at+time.Millisecond, "not ready", bad, "outlier", "gets no calls while others are ready")
			add(at+time.Millisecond, "ejected", bad, "outlier", fmt.Sprintf("it is still bad; trial %d", trial))
		}
		const revision = " (revision 1)"
		add(15*time.Second+time.Duration(client)*100*time.Millisecond, "rule", "Shop/try", "ann", "in force: send 10 %: CHG-88"+revision)
		add(40*time.Second+time.Duration(client)*100*time.Millisecond, "rule", "Shop/try", "auto-rollback", fmt.Sprintf("rolled back: %d of 50 calls succeeded", client))
		add(41*time.Second, "rule", "Shop/try", "auto-rollback", "switched off: 0 of 50 calls succeeded (revision 2)")
		add(time.Minute, "rule", "Shop/try", "", "removed: the history of Shop says by whom, and why")
	}
	add(41*time.Second, "ready", bad, "outlier", "no longer held back") // for a trial that no call makes
	add(49*time.Second, "start", other, "", "listening")
	add(15*time.Second, "rule", "Shop/try", "ann", "put: CHG-88 (revision 1)")
	add(41*time.Second, "rule", "Shop/try", "auto-rollback", "auto-rollback: 0 of 50 (revision 2)")
	add(time.Minute, "rule", "Shop/try", "bob", "remove: done (revision 3)")
	add(30*time.Second, "rule", "Shop/try", "ann", "in force: send 10 %: CHG-88 (revision 1)") // in a process that has started
	add(50*time.Second, "ejected", other, "outlier", "3 calls in a row failed")
	add(52*time.Second, "readmitted", other, "outlier", "it is well again")
	add(52*time.Second, "ready", other, "outlier", "no longer held back")
	add(50*time.Second+100*time.Millisecond, "instance up", other, "resolver", "an instance of Shop: the resolver names it")
	add(50*time.Second+200*time.Millisecond, "instance up", other, "resolver", "an instance of Shop: the resolver names it")
	want := []string{
		"1m0s rule Shop/try bob remove: done (revision 3)",
		"52s readmitted " + other + " outlier it is well again",
		"49s start " + other + "  listening",
		"40s ejected " + bad + " outlier it is still bad; trial 4; 5 times in 40s",
		"40s rule Shop/try auto-rollback switched off: 0 of 50 calls succeeded (revision 2)",
		"15s rule Shop/try ann in force: send 10 %: CHG-88 (revision 1)",
	}
	var got []string
	for _, e := range fleet.Changes(all) {
		got = append(got, fmt.Sprintf("%v %s %s %s %s", e.At.Sub(start).Truncate(100*time.Millisecond), e.Kind, e.Object, e.By, e.What))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d events are shown as\n%s\nwant\n%s", len(all), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestChangesKeepsWhatDiffers lists changes of one moment that are not the same.
func TestChangesKeepsWhatDiffers(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	all := []introspect.Event{
		{At: now, Kind: "rule", Object: "Shop/a", By: "ann", What: "in force: a (revision 1)"},
		{At: now.Add(time.Millisecond), Kind: "rule", Object: "Shop/a", By: "ann", What: "changed: a (revision 2)"},
		{At: now.Add(time.Second), Kind: "rule", Object: "Shop/a", What: "removed: the history of Shop says by whom, and why"},
		{At: now.Add(time.Second), Kind: "rule", Object: "Shop/b", By: "ann", What: "in force: b (revision 3)"},
		{At: now.Add(time.Minute), Kind: "rule", Object: "Shop/b", By: "expiry", What: "expired: b (revision 3)"},
		{At: now.Add(time.Minute), Kind: "not ready", Object: "10.0.0.7:1", By: "breaker", What: "gets no calls while others are ready"},
		{At: now.Add(time.Minute), Kind: "not ready", Object: "10.0.0.7:1", By: "outlier", What: "gets no calls while others are ready"},
		{At: now.Add(time.Hour), Kind: "not ready", Object: "10.0.0.7:1", By: "outlier", What: "gets no calls while others are ready"},
	}
	if got := fleet.Changes(slices.Clone(all)); len(got) != len(all) {
		t.Errorf("%d changes are shown as %d:\n%v", len(all), len(got), got)
	}
}
