// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Merge returns a resolver of the instances that any of the resolvers knows. If several have a
// record for one address, the first resolver's record counts. If a resolver fails, its last result
// stays. Its failure is an error only while no resolver has returned a result. Otherwise it is
// logged.
func Merge(resolvers ...yodel.Resolver) yodel.Resolver {
	return newSeveral(resolvers, func(sets [][]yodel.Instance) []yodel.Instance {
		var all []yodel.Instance
		seen := make(map[string]bool)
		for _, set := range sets {
			for _, in := range set {
				if !seen[in.Addr] {
					seen[in.Addr] = true
					all = append(all, in)
				}
			}
		}
		return all
	})
}

// Prefer returns a resolver that uses the first of the resolvers with an instance that is not
// inactive. For example, it uses a registry in another data center when this one has no instances
// left.
func Prefer(resolvers ...yodel.Resolver) yodel.Resolver {
	return newSeveral(resolvers, func(sets [][]yodel.Instance) []yodel.Instance {
		for _, set := range sets {
			if slices.ContainsFunc(set, func(in yodel.Instance) bool { return in.State != "inactive" }) {
				return set
			}
		}
		return slices.Concat(sets...)
	})
}

// several is a resolver that combines other resolvers.
type several struct {
	resolvers []yodel.Resolver
	choose    func(sets [][]yodel.Instance) []yodel.Instance
	failing   []atomic.Bool // whether the last log entry of a resolver says that it fails
}

func newSeveral(resolvers []yodel.Resolver, choose func([][]yodel.Instance) []yodel.Instance) *several {
	return &several{resolvers, choose, make([]atomic.Bool, len(resolvers))}
}

// firstTime is how long the first update waits for all resolvers. A registry that is down must not
// delay the start for longer, and a registry that is a little slower than another must be part of
// the first update.
const firstTime = 500 * time.Millisecond

// Watch implements yodel.Resolver. It asks a failed resolver again. It fails when all resolvers
// have failed and none has returned a result, so that the client can report the reason.
func (s *several) Watch(ctx context.Context, update func([]yodel.Instance)) error {
	if len(s.resolvers) == 0 {
		return errors.New("no resolvers to choose from")
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var mu sync.Mutex
	sets := make([][]yodel.Instance, len(s.resolvers))
	spoken := make([]bool, len(s.resolvers))
	errs := make([]error, len(s.resolvers))
	news := make(chan struct{}, 1)
	wake := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	for i, r := range s.resolvers {
		heard := func(instances []yodel.Instance) {
			mu.Lock()
			sets[i], spoken[i], errs[i] = instances, true, nil
			mu.Unlock()
			if s.failing[i].CompareAndSwap(true, false) {
				slog.Info("yodel: one of several resolvers works again", "number", i+1)
			}
			wake()
		}
		failed := func(err error) {
			mu.Lock()
			errs[i] = err
			silent := !slices.Contains(spoken, true)
			mu.Unlock()
			if s.failing[i].CompareAndSwap(false, true) {
				slog.Warn("yodel: one of several resolvers failed, and is asked again; what it said stays in use", "number", i+1, "err", err)
			}
			if silent {
				wake()
			}
		}
		wg.Go(func() { persist(ctx, r, heard, failed) })
	}
	late := time.After(firstTime)
	for begun := false; ; {
		select {
		case <-news:
		case <-late:
			if begun {
				continue
			}
			begun = true
		case <-ctx.Done():
			return nil
		}
		mu.Lock()
		begun = begun || !slices.Contains(spoken, false)
		known, now := slices.Contains(spoken, true), slices.Clone(sets)
		why := slices.Clone(errs)
		mu.Unlock()
		switch {
		case begun && known:
			update(s.choose(now))
		case !known && !slices.Contains(why, nil):
			return errors.Join(why...)
		}
	}
}

// Refresh calls Refresh on the resolvers that support it: see yodel.Resolver.
func (s *several) Refresh() {
	for _, r := range s.resolvers {
		refresh(r)
	}
}

func refresh(r yodel.Resolver) {
	if asked, ok := r.(interface{ Refresh() }); ok {
		asked.Refresh()
	}
}

// persist watches r until ctx ends. It watches r again each time that Watch ends.
func persist(ctx context.Context, r yodel.Resolver, heard func([]yodel.Instance), failed func(error)) {
	const first, last = 20 * time.Millisecond, 2 * time.Second
	backoff := first
	for ctx.Err() == nil {
		began := time.Now()
		// The last result of r stays in use, and r is watched again.
		err := safely("the Watch of a resolver", func() error { return r.Watch(ctx, heard) })
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it stopped watching")
		}
		failed(err)
		if time.Since(began) > last {
			backoff = first
		}
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, last)
	}
}
