// SPDX-License-Identifier: Apache-2.0

package defaults_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/defaults"
)

func TestPositive(t *testing.T) {
	for v, want := range map[int]int{math.MinInt: 5, -1: 5, 0: 5, 1: 1, 7: 7, math.MaxInt: math.MaxInt / 8} {
		if got := defaults.Positive(v, 5); got != want {
			t.Errorf("%d becomes %d, want %d", v, got, want)
		}
	}
	for v, want := range map[time.Duration]time.Duration{-1: time.Hour, 0: time.Hour, 1: 1, math.MaxInt64: defaults.Forever} {
		if got := defaults.Positive(v, time.Hour); got != want {
			t.Errorf("%v becomes %v, want %v", v, got, want)
		}
	}
	if 2*defaults.Forever < defaults.Forever {
		t.Error("the sum of the longest durations overflows")
	}
}

func TestFill(t *testing.T) {
	type options struct {
		Name  string
		Limit int
		Hook  func() string
	}
	o := options{Name: "own"}
	defaults.Fill(&o, options{Name: "other", Limit: 3, Hook: func() string { return "other" }})
	if o.Name != "own" || o.Limit != 3 || o.Hook == nil || o.Hook() != "other" {
		t.Errorf("got %+v", o)
	}
}

func TestRefuseNil(t *testing.T) {
	isNil := func(f func()) bool { return f == nil }
	defaults.RefuseNil("Hooks", []func(){func() {}}, isNil)
	defer func() {
		if got, want := recover(), "yodel: Hooks[1] is nil"; got != want {
			t.Errorf("it panics with %v, want %s", got, want)
		}
	}()
	defaults.RefuseNil("Hooks", []func(){func() {}, nil}, isNil)
}

type named struct{ name, of string }

func (n named) Name() string { return n.name }

func TestElementsAreFoundByTheirNames(t *testing.T) {
	all, list := defaults.ByName("Codecs", []named{{"gob", "user"}, {"json", "user"}}, named{"json", "default"}, named{"raw", "default"})
	if list != "gob, json, raw" || fmt.Sprint(all) != "map[gob:{gob user} json:{json user} raw:{raw default}]" {
		t.Errorf("got %s: %v", list, all)
	}
	if all, list = defaults.ByName[named]("Compressors", nil); list != "none" || len(all) != 0 || all == nil {
		t.Errorf("without elements, got %s: %v", list, all)
	}
	defer func() {
		if got, want := fmt.Sprint(recover()), `yodel: element 2 of Codecs has the name "gob" of an earlier element`; got != want {
			t.Errorf("it panics with %s, want %s", got, want)
		}
	}()
	defaults.ByName("Codecs", []named{{"gob", ""}, {"json", ""}, {"gob", ""}})
}
