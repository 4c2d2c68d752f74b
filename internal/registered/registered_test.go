// SPDX-License-Identifier: Apache-2.0

package registered_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/registered"
)

type method = registered.Method

// of returns the methods of a server with names.
func of(t testing.TB, names ...string) *registered.Methods {
	t.Helper()
	s := &registered.Methods{BuiltIn: "yodel"}
	for _, name := range names {
		register(t, s, name)
	}
	return s
}

func register(t testing.TB, s *registered.Methods, name string) *method {
	t.Helper()
	m := new(method)
	if err := s.Publish(map[string]*method{name: m}); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestNamesComeAndGo(t *testing.T) {
	s := of(t, "Arith.Mul", "Arith.Add")
	mul := s.Get("Arith.Mul")
	version := s.Version()
	if !s.Add("Arith.Mul", map[string]*method{"Times": mul}) || s.Get("Times") != mul {
		t.Error("the alias was not added")
	}
	if s.Version() == version {
		t.Error("the version has not changed")
	}
	var listed []string
	s.Each(func(names []string, m *method) { listed = append(listed, strings.Join(names, "=")) })
	if got := strings.Join(listed, " "); got != "Arith.Add Arith.Mul=Times" {
		t.Errorf("got %s", got)
	}
	mul.Stats.Begin()
	s.Get("Arith.Add").Stats.Begin()
	if calls, ok := s.Inflight(); calls != 2 || !ok {
		t.Errorf("%d calls are in flight, counted %v", calls, ok)
	}
	if removed, missing := s.Remove([]string{"Arith.Mul", "Nothing"}); removed != nil || missing != "Nothing" || s.Get("Arith.Mul") == nil {
		t.Errorf("got %v, %q", removed, missing)
	}
	if removed, missing := s.Remove([]string{"Arith.Mul", "Arith.Mul"}); len(removed) != 1 || removed[0] != mul || missing != "" {
		t.Errorf("got %v, %q", removed, missing)
	}
	if s.Get("Arith.Mul") != nil || s.Get("Times") != mul {
		t.Error("the name is still there, or its alias is not")
	}
	if s.Add("Arith.Mul", map[string]*method{"Product": mul}) || s.Get("Product") != nil {
		t.Error("a name that was removed got an alias")
	}
	if register(t, s, "Arith.Mul") == mul {
		t.Error("the name has its old method")
	}
}

func TestNamesAreReserved(t *testing.T) {
	s := of(t, "Taken")
	for name, want := range map[string]string{
		"":                       "needs a name",
		"Taken":                  "Taken: the name is taken",
		"a\nb":                   `"a\nb": the name has control characters`,
		strings.Repeat("a", 256): "has 256 bytes, the limit is",
	} {
		if err := s.Reserve([]string{"Free", name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", name, err, want)
		}
	}
	if err := s.Reserve([]string{"Free"}); err != nil {
		t.Errorf("a list that was refused keeps its names: %v", err)
	}
	if err := s.Reserve([]string{"Free"}); err == nil {
		t.Error("a name was reserved twice")
	}
	s.Release([]string{"Free"})
	if err := s.Reserve([]string{"Free"}); err != nil {
		t.Error(err)
	}
}

func TestANameMayHaveTheOtherSeparator(t *testing.T) {
	s := of(t, "Arith.Mul", "shop.Cart/Add", "a/b", "a.b")
	for name, want := range map[string]string{
		"Arith.Mul": "Arith.Mul", "Arith/Mul": "Arith.Mul", "shop.Cart.Add": "shop.Cart/Add", "shop/Cart/Add": "shop/Cart/Add",
		"a/b": "a/b", "a.b": "a.b", "Mul": "Mul", "": "",
	} {
		if got := s.Meant(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestServicesAreListed(t *testing.T) {
	s := of(t, "yodel.Info", "b.B/M", "a.A.M", "a.A.N", "alone")
	if got := s.Services(); !slices.Equal(got, []string{"a.A", "alone", "b.B"}) {
		t.Errorf("got %q", got)
	}
	if len(s.EncodedServices()) == 0 || of(t, "yodel.Info").EncodedServices() != nil {
		t.Error("the encoded services are not those of the list")
	}
	for i := range 5000 {
		register(t, s, fmt.Sprintf("Service%d.M", i))
	}
	if got := s.EncodedServices(); got != nil {
		t.Errorf("%d bytes of services are more than the settings take", len(got))
	}
}

// A change is seen by every Get that begins after it.
func TestMethodsAreReadWhileTheyChange(t *testing.T) {
	s := of(t, "Always")
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if s.Get("Always") == nil {
					t.Error("a name was lost")
					return
				}
			}
		})
	}
	for i := range 500 {
		name := fmt.Sprint("M", i)
		if m := register(t, s, name); s.Get(name) != m {
			t.Errorf("%s: not there after it was added", name)
		}
		if _, missing := s.Remove([]string{name}); missing != "" || s.Get(name) != nil {
			t.Errorf("%s: still there after it was removed", name)
		}
	}
	close(done)
	wg.Wait()
}

// The time to register methods grows linearly: 20,000 took 4.6 s when each change copied the names.
func TestRegistrationIsLinear(t *testing.T) {
	s := of(t)
	const n = 20_000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range n {
		register(t, s, fmt.Sprint("Service.Method", i))
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 4000 {
		t.Errorf("%d methods took %d bytes each", n, each)
	}
}

func TestUnknownMethodsAreNamed(t *testing.T) {
	builtIn, full := of(t, "yodel.Info"), of(t, "yodel.Info", "Arith.Mul", "sum")
	for _, test := range []struct {
		methods       *registered.Methods
		name, similar string
		want          string
		hasService    bool
	}{
		{builtIn, "Arith.Mul", "", `Arith.Mul: this server has no service "Arith": no methods were registered`, false},
		{builtIn, "Mul", "", "Mul: this server has no such method: no methods were registered", false},
		{full, "Arith.Add", "", `Arith.Add: service "Arith" has no method "Add"`, true},
		{full, "Arit.Mul", "Arith.Mul", `Arit.Mul: this server has no service "Arit"; did you mean "Arith.Mul"?`, false},
		{full, "sun", "sum", `sun: this server has no such method; did you mean "sum"?`, true},
	} {
		f := test.methods.Unknown(test.name, test.similar)
		message, hasService := f.Error(), f.ID == catalogue.NoMethod
		if message != test.want || hasService != test.hasService {
			t.Errorf("got %q, %v, want %q, %v", message, hasService, test.want, test.hasService)
		}
	}
	if !full.HasService("Arith") || builtIn.HasService("Arith") {
		t.Error("a service is on another server than its methods")
	}
	if got := full.Similar("Arith.Mult"); got != "Arith.Mul" {
		t.Errorf("got %q", got)
	}
}

func TestSearchesAreLimited(t *testing.T) {
	var s registered.Methods
	admitted := 0
	for range 500 {
		if s.AdmitSearch(time.Hour) {
			admitted++
		}
	}
	if admitted != 50 || !s.AdmitSearch(time.Hour+100*time.Millisecond) {
		t.Errorf("admitted %d searches at once, want 50 and one each 100 ms", admitted)
	}
}

// BenchmarkUnknown measures the message for an unknown method of a server of 1000.
func BenchmarkUnknown(b *testing.B) {
	s := of(b)
	for i := range 1000 {
		register(b, s, fmt.Sprintf("Service%d.SomeMethodWithALongName%d", i/10, i))
	}
	for b.Loop() {
		_ = s.Unknown("Service5.SomeMethodWithALongName5000", "")
	}
}
