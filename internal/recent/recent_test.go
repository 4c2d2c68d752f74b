// SPDX-License-Identifier: Apache-2.0

package recent_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
	"github.com/yodel-rpc/yodel/internal/recent"
)

func TestMain(m *testing.M) { leak.Verify(m) }

// A value is one of a name.
type value struct {
	name string
	kind int
}

const (
	mostNames = 4
	kinds     = recent.Most + 3
)

// Names remembers what a list remembers that is searched from its front, where each used value is
// put.
func TestNamesRememberTheValuesThatWereUsedLast(t *testing.T) {
	var n recent.Names[value]
	want := make(map[string][]*value)
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 20_000 {
		asked := value{fmt.Sprint(random.IntN(mostNames + 2)), random.IntN(kinds)}
		keep := random.IntN(4) > 0
		fits := func(v *value) bool { return v.kind == asked.kind }
		if random.IntN(3) == 0 {
			fits = func(*value) bool { return true }
		}
		var made *value
		got := n.Get(asked.name, mostNames, fits, func() (*value, bool) {
			made = &value{asked.name, asked.kind}
			return made, keep
		})
		list := want[asked.name]
		at := slices.IndexFunc(list, fits)
		switch {
		case at < 0 && (made == nil || got != made):
			t.Fatalf("step %d: got %v, which is not new", step, got)
		case at >= 0 && (made != nil || got != list[at]):
			t.Fatalf("step %d: got %v, want %v", step, got, list[at])
		case at >= 0:
			list = slices.Delete(list, at, at+1)
		case !keep || list == nil && len(want) == mostNames:
			continue
		}
		list = slices.Insert(list, 0, got)
		want[asked.name] = list[:min(len(list), recent.Most)]
	}
	if len(want) != mostNames {
		t.Fatalf("only %d names are known", len(want))
	}
}

func TestAKnownValueTakesNoMemory(t *testing.T) {
	var n recent.Names[value]
	kind := 1
	get := func() *value {
		return n.Get("name", 1, func(v *value) bool { return v.kind == kind }, func() (*value, bool) { return &value{"name", kind}, true })
	}
	first := get()
	if got := testing.AllocsPerRun(100, func() {
		if get() != first {
			t.Error("the value is not known")
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestNamesAreUsedConcurrently(t *testing.T) {
	var n recent.Names[value]
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 1000 {
				want := value{fmt.Sprint(j % 3), i % 2}
				if got := n.Get(want.name, 3, func(v *value) bool { return v.kind == want.kind }, func() (*value, bool) { return &want, true }); got.name != fmt.Sprint(j%3) || got.kind != i%2 {
					t.Errorf("got %v", got)
				}
			}
		})
	}
	all.Wait()
}
