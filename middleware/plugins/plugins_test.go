// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/plugins"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const ask yodel.Method[string, string] = "Test.Ask"

// naming returns a plug-in that adds its name and the number of its calls to the metadata.
func naming(name string) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		calls := 0
		return func(ctx context.Context, call *yodel.Call) error {
			calls++
			if call.Metadata == nil {
				call.Metadata = yodel.Metadata{}
			}
			call.Metadata["seen"] += fmt.Sprint(name, calls, " ")
			return next(ctx, call)
		}
	}
}

func TestPluginsComeAndGoWhileTheServerRuns(t *testing.T) {
	var set plugins.Set
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{set.Middleware}})
	ask.Handle(s.Server, func(ctx context.Context, _ *string) (*string, error) {
		seen := strings.TrimSpace(yodel.CallFrom(ctx).Metadata["seen"])
		return &seen, nil
	})
	c := yodeltest.NewClient(t, nil, s)
	for _, step := range []struct {
		change func()
		names  string
		want   string
	}{
		{func() {}, "", ""},
		{func() { set.Put("a", naming("a")) }, "a", "a1"},
		{func() { set.Put("b", naming("b")) }, "a b", "a2 b1"},
		{func() { set.Put("c", naming("c")) }, "a b c", "a3 b2 c1"},
		{func() { set.Put("b", naming("B")) }, "a b c", "a4 B1 c2"}, // in the same place, with a new state
		{func() { set.Remove("a") }, "b c", "B2 c3"},
		{func() { set.Put("a", naming("a")) }, "b c a", "B3 c4 a1"},
		{func() { set.Remove("b"); set.Remove("a"); set.Remove("c") }, "", ""},
	} {
		step.change()
		got, err := ask.Call(t.Context(), c, new("x"))
		if err != nil || *got != step.want || strings.Join(set.Names(), " ") != step.names {
			t.Errorf("the call passed %v (%v), want %q, and the names are %q, want %q", got, err, step.want, set.Names(), step.names)
		}
	}
	if set.Remove("a") {
		t.Error("a plug-in was removed that is not there")
	}
}

// Each client has plug-ins with a state of its own.
func TestChainsShareASet(t *testing.T) {
	var set plugins.Set
	set.Put("a", naming("a"))
	s := yodeltest.NewServer(t, nil)
	ask.Handle(s.Server, func(ctx context.Context, _ *string) (*string, error) {
		seen := strings.TrimSpace(yodel.CallFrom(ctx).Metadata["seen"])
		return &seen, nil
	})
	o := &yodel.ClientOptions{Middleware: []yodel.Middleware{set.Middleware}}
	first, second := yodeltest.NewClient(t, o, s), yodeltest.NewClient(t, o, s)
	set.Put("b", naming("b"))
	for i, c := range []*yodel.Client{first, first, second} {
		want := []string{"a1 b1", "a2 b2", "a1 b1"}[i]
		if got, err := ask.Call(t.Context(), c, new("x")); err != nil || *got != want {
			t.Errorf("call %d passed %v (%v), want %q", i+1, got, err, want)
		}
	}
}

// The function of a plug-in may use the Set, and is called once for each chain.
func TestTheFunctionOfAPluginMayUseTheSet(t *testing.T) {
	var set plugins.Set
	end := func(context.Context, *yodel.Call) error { return nil }
	set.Middleware(end)
	made := 0
	set.Put("a", func(next yodel.Handler) yodel.Handler {
		if made++; made == 1 {
			set.Put("b", naming("b"))
			set.Middleware(end) // another chain, while a is added to the first
		}
		return next
	})
	if names := set.Names(); !slices.Equal(names, []string{"b", "a"}) || made != 2 {
		t.Errorf("the plug-ins are %q, and the function was called %d times for 2 chains", names, made)
	}
}

// Plug-ins come and go while calls run. Each call is executed once, and passes each plug-in at most
// once.
func TestNoCallIsLostWhilePluginsComeAndGo(t *testing.T) {
	t.Attr("rerun", "never")
	var set plugins.Set
	var executed, twice atomic.Int64
	h := set.Middleware(func(_ context.Context, call *yodel.Call) error {
		executed.Add(1)
		names := strings.Fields(call.Method)
		slices.Sort(names)
		if len(slices.Compact(slices.Clone(names))) != len(names) {
			twice.Add(1)
		}
		return nil
	})
	var changing, calling sync.WaitGroup
	changing.Go(func() {
		for i := range 1000 { // without an end, a call could follow the plug-ins that are added for ever
			name := strconv.Itoa(i)
			set.Put(name, func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					call.Method += " " + name
					return next(ctx, call)
				}
			})
			set.Remove(strconv.Itoa(i - 4))
		}
	})
	const callers, calls = 4, 5000
	for range callers {
		calling.Go(func() {
			for range calls {
				if err := h(t.Context(), &yodel.Call{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	calling.Wait()
	changing.Wait()
	if executed.Load() != callers*calls || twice.Load() != 0 {
		t.Errorf("%d of %d calls were executed, and %d passed a plug-in twice", executed.Load(), callers*calls, twice.Load())
	}
}
