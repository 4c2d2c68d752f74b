// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/methods"
)

type method struct{ name string }

// add adds names to a table, and counts those that have gone for them.
func add(t *testing.T, table *methods.Table[method], names map[string]bool, name string) {
	t.Helper()
	if removed := table.Add(name, &method{name}); removed != nil {
		if !names[removed.name] || table.Get(removed.name) != nil {
			t.Fatalf("%s was removed, for %s; the table has %v", removed.name, name, table.Get(removed.name))
		}
		delete(names, removed.name)
	}
	names[name] = true
}

func TestTheTableHasWhatWasAdded(t *testing.T) {
	var table methods.Table[method]
	if table.Get("") != nil {
		t.Error("an empty table has a value")
	}
	names := make(map[string]bool)
	for i := range 10 * methods.Max {
		add(t, &table, names, fmt.Sprint("M", i))
		if len(names) > methods.Max {
			t.Fatalf("%d names", len(names))
		}
		if i%5000 != 0 && i != 10*methods.Max-1 {
			continue
		}
		for name := range names {
			if m := table.Get(name); m == nil || m.name != name {
				t.Fatalf("%s: got %v", name, m)
			}
		}
	}
	if len(names) < methods.Max*9/10 {
		t.Errorf("only %d names are left", len(names))
	}
}

// While there is room nothing is removed, and later nothing that is in use: except, by chance,
// where a bucket is full.
func TestNamesInUseRemain(t *testing.T) {
	var table methods.Table[method]
	names := make(map[string]bool)
	const used = 200
	for i := range used {
		add(t, &table, names, fmt.Sprint("Used", i))
	}
	for i := range methods.Max / 2 {
		add(t, &table, names, fmt.Sprint("M", i))
	}
	if len(names) < used+methods.Max/2-3 {
		t.Fatalf("%d names of %d", len(names), used+methods.Max/2)
	}
	lost := 0
	for i := range 10 * methods.Max {
		add(t, &table, names, fmt.Sprint("Other", i))
		if name := fmt.Sprint("Used", i%used); table.Get(name) == nil {
			lost++
			add(t, &table, names, name)
		}
	}
	if lost > 10*methods.Max/used {
		t.Errorf("a name in use was removed %d times", lost)
	}
}

// When all names are in use, a new one gets a place nevertheless.
func TestAllNamesAreInUse(t *testing.T) {
	var table methods.Table[method]
	names := make(map[string]bool)
	for i := range 3 * methods.Max {
		add(t, &table, names, fmt.Sprint("M", i))
		for j := max(i-5000, 0); j <= i && i%1000 == 0; j++ {
			table.Get(fmt.Sprint("M", j))
		}
	}
}

func TestTablesAreReadWhileTheyChange(t *testing.T) {
	var table methods.Table[method]
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				name := fmt.Sprint("M", i%(2*methods.Max))
				if m := table.Get(name); m != nil && m.name != name {
					t.Errorf("%s: got %v", name, m)
				}
			}
		})
	}
	for i := range 4 * methods.Max {
		table.Add(fmt.Sprint("M", i), &method{fmt.Sprint("M", i)})
	}
	close(done)
	wg.Wait()
}

func TestListsGrow(t *testing.T) {
	var l methods.List[int]
	if l.At(0) != nil || l.At(1000) != nil {
		t.Error("an empty list has a value")
	}
	for _, i := range []int{3, 0, 4, 5000, 17, 3} {
		l.Set(i, &i)
		if got := l.At(i); got == nil || *got != i {
			t.Errorf("at %d: got %v", i, got)
		}
	}
	for _, i := range []int{3, 0, 4, 5000, 17} {
		if got := l.At(i); got == nil || *got != i {
			t.Errorf("at %d, in the end: got %v", i, got)
		}
	}
	if l.At(1) != nil || l.At(5001) != nil {
		t.Error("the list has values that were not set")
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{1, 30, 1000, methods.Max} {
		var names []string
		var table methods.Table[method]
		for i := range n {
			names = append(names, fmt.Sprint("Service.Method", i))
			table.Add(names[i], &method{names[i]})
		}
		b.Run(fmt.Sprintf("get/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				table.Get(names[i%n])
			}
		})
	}
	b.Run("add", func(b *testing.B) {
		var table methods.Table[method]
		for i := 0; b.Loop(); i++ {
			table.Add(fmt.Sprint(i), &method{})
		}
	})
}
