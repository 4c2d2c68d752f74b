// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/introspect"
)

// The tests of this file count the values in memory that were allocated by a function, or by one
// that it has called. Their numbers are exact, while a System also keeps memory in reserve.

// countAllocations lets inUse count what is allocated until the test ends.
func countAllocations(t *testing.T) {
	t.Helper()
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1                          //nolint:reassign // it is a setting
	t.Cleanup(func() { runtime.MemProfileRate = rate }) //nolint:reassign // as above
}

// inUse returns how many values are in memory that a function has allocated. Name is a part of the
// function's name.
func inUse(name string) (n int64) {
	runtime.GC() // the profile is that of the last collection but one
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1000)
	for {
		of, ok := runtime.MemProfile(records, false)
		if ok {
			records = records[:of]
			break
		}
		records = make([]runtime.MemProfileRecord, 2*of)
	}
	for _, r := range records {
		frames := runtime.CallersFrames(r.Stack())
		for more := true; more; {
			var f runtime.Frame
			if f, more = frames.Next(); strings.Contains(f.Function, name) {
				n += r.InUseObjects()
				break
			}
		}
	}
	return n
}

// Messages to actors that do not exist leave nothing behind.
func TestMessagesToActorsThatAreGoneTakeNoMemory(t *testing.T) {
	countAllocations(t)
	host := system(t, true, nil)
	var lost atomic.Int64
	from := system(t, false, &actor.Options{OnLost: func(actor.Ref, string, error) { lost.Add(1) }})
	const n = 2500
	for i := range n {
		ref := actor.Ref{Addr: host.Addr(), Kind: "Probe", Name: "gone-" + strconv.Itoa(i)}
		startProbe(t, host, ref.Name, newProbe(), nil)
		host.Stop(ref)
		if err := from.Send(t.Context(), ref, &Tell{"x"}); err != nil {
			t.Fatal(err)
		}
		for lost.Load()+50 < int64(i) { // few are on their way
			runtime.Gosched()
		}
	}
	for lost.Load() < n {
		runtime.Gosched()
	}
	for _, function := range []string{"actor.newOutbox", "actor.(*System).letter", "actor.(*System).start"} {
		if got := inUse(function); got > n {
			t.Errorf("after %d messages there are %d values of %s", n, got, function)
		}
	}
}

// Questions that time out leave nothing behind, neither where they were asked nor with the actor.
func TestQuestionsThatTimeOutTakeNoMemory(t *testing.T) {
	countAllocations(t)
	bothWays(t, &actor.Options{Inbox: 20}, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		free := make(chan struct{})
		p.do = func(context.Context, *Do) (*Said, error) { <-free; return &Said{}, nil }
		ref := startProbe(t, host, "probe", p, nil)
		if err := from.Send(t.Context(), ref, &Tell{"block"}); err != nil {
			t.Fatal(err)
		}
		p.waitFor(t, "tell", 1)
		const n = 2000
		var callers sync.WaitGroup
		for range 50 {
			callers.Go(func() {
				for range n / 50 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					if _, err := actor.AskSync[Said](ctx, from, ref, &Do{"x"}); yodel.CodeOf(err) != yodel.DeadlineExceeded {
						t.Errorf("got %v", err)
					}
					cancel()
				}
			})
		}
		callers.Wait()
		if _, err := from.Lookup(t.Context(), host.Addr(), "probe"); err != nil { // behind all questions
			t.Fatal(err)
		}
		await(t, host, func(s introspect.Actor) bool { return s.Inbox == 0 && s.Held == 0 })
		for _, function := range []string{"actor.(*System).letter", "actor.(*System).receive", "actor.(*System).here", "actor.(*envelope)"} {
			if got := inUse(function); got > n/2 {
				t.Errorf("after %d questions there are %d values of %s", n, got, function)
			}
		}
		close(free)
	})
}

// Clients that have left leave nothing behind.
func TestClientsThatHaveLeftTakeNoMemory(t *testing.T) {
	countAllocations(t)
	host := system(t, true, nil)
	ref := startProbe(t, host, "probe", newProbe(), nil)
	const n = 200
	for i := range n {
		from := actor.NewSystem(nil)
		if _, err := ask(t, from, ref, "x"); err != nil {
			t.Fatal(err)
		}
		if i == n-1 {
			from.Stop(ref) // an actor of another System: nothing happens
		}
		shutdown(t, from)
	}
	for _, function := range []string{"actor.(*System).connect", "yodel.(*session)"} {
		if got := inUse(function); got > n {
			t.Errorf("after %d clients there are %d values of %s", n, got, function)
		}
	}
}
