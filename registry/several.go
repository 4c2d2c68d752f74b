// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// Merge returns a resolver of the instances that any of the resolvers knows. If several have a
// record for one address, the first resolver's record counts. If a resolver fails, its last result
// stays. Its failure is an error only while no resolver has returned a result. Otherwise it is
// logged.
func Merge(resolvers ...discovery.Resolver) discovery.Resolver {
	return newSeveral(resolvers, func(sets [][]discovery.Instance) []discovery.Instance {
		var all []discovery.Instance
		seen := make(map[string]bool)
		for _, set := range sets {
			for _, in := range Distinct(set) {
				if !seen[in.Addr] {
					seen[in.Addr] = true
					all = append(all, in)
				}
			}
		}
		return all
	})
}

// Distinct returns the instances with one for each address: the first that is not inactive, or the
// first. A registry may list an address twice, for example that of a server that ends and that of
// its successor. Distinct does not change all.
func Distinct(all []discovery.Instance) []discovery.Instance {
	if len(all) < 2 {
		return all
	}
	distinct, at := make([]discovery.Instance, 0, len(all)), make(map[string]int, len(all))
	for _, in := range all {
		i, twice := at[in.Addr]
		switch {
		case !twice:
			at[in.Addr] = len(distinct)
			distinct = append(distinct, in)
		case distinct[i].State == "inactive" && in.State != "inactive":
			distinct[i] = in
		}
	}
	return distinct
}

// Prefer returns a resolver that uses the first of the resolvers with an instance that is not
// inactive. For example, it uses a registry in another data center when this one has no instances
// left.
func Prefer(resolvers ...discovery.Resolver) discovery.Resolver {
	return newSeveral(resolvers, func(sets [][]discovery.Instance) []discovery.Instance {
		for _, set := range sets {
			if slices.ContainsFunc(set, func(in discovery.Instance) bool { return in.State != "inactive" }) {
				return set
			}
		}
		return slices.Concat(sets...)
	})
}

// several is a resolver that combines other resolvers.
type several struct {
	resolvers []discovery.Resolver
	choose    func(sets [][]discovery.Instance) []discovery.Instance
	failing   []atomic.Bool // whether the last log entry of a resolver says that it fails
}

func newSeveral(resolvers []discovery.Resolver, choose func([][]discovery.Instance) []discovery.Instance) *several {
	return &several{resolvers, choose, make([]atomic.Bool, len(resolvers))}
}

// firstTime is how long the first update waits for all resolvers. A registry that is down must not
// delay the start for longer, and a registry that is a little slower than another must be part of
// the first update.
const firstTime = 500 * time.Millisecond

// Watch implements discovery.Resolver. It asks a failed resolver again. It fails when all resolvers
// have failed and none has returned a result, so that the client can report the reason.
func (s *several) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	if len(s.resolvers) == 0 {
		return errors.New("no resolvers to choose from")
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var mu sync.Mutex
	sets := make([][]discovery.Instance, len(s.resolvers))
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
		heard := func(instances []discovery.Instance) {
			mu.Lock()
			sets[i], spoken[i], errs[i] = instances, true, nil
			mu.Unlock()
			if s.failing[i].CompareAndSwap(true, false) {
				slog.Info("yodel: one of several resolvers works again", "resolver", i+1)
			}
			wake()
		}
		failed := func(err error) {
			mu.Lock()
			errs[i] = err
			silent := !slices.Contains(spoken, true)
			mu.Unlock()
			if s.failing[i].CompareAndSwap(false, true) {
				slog.Warn("yodel: one of several resolvers failed, and is asked again; what it said stays in use", "resolver", i+1, "err", err)
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

// Describe implements the optional method of discovery.Resolver. Refresh refreshes all resolvers,
// all of them amend the options of clients, and the first that can list services does so. Service
// is "" unless all resolvers resolve the same service.
func (s *several) Describe() yodel.Description {
	var d yodel.Description
	all := make([]yodel.Description, len(s.resolvers))
	names := make([]string, len(s.resolvers))
	for i, r := range s.resolvers {
		d, all[i] = d.Over(r), yodel.Description{}.Over(r)
		names[i] = cmp.Or(all[i].Name, fmt.Sprintf("a %T", r))
	}
	d.Name = strings.Join(names, " and ")
	if slices.ContainsFunc(all, func(of yodel.Description) bool { return of.Service != d.Service }) {
		d.Service = ""
	}
	if d.Refresh != nil {
		d.Refresh = func() { refresh(all) }
	}
	if d.Services != nil {
		d.Services = func(ctx context.Context) (string, []string, error) { return services(ctx, all) }
	}
	if d.AmendClient != nil {
		d.AmendClient = func(o *yodel.ClientOptions) *yodel.ClientOptions { return amend(o, all) }
	}
	return d
}

func refresh(all []yodel.Description) {
	for i := range all {
		if all[i].Refresh != nil {
			all[i].Refresh()
		}
	}
}

func services(ctx context.Context, all []yodel.Description) (asked string, known []string, err error) {
	for i := range all {
		if all[i].Services == nil {
			continue
		}
		if asked, known, err = all[i].Services(ctx); err == nil {
			return asked, known, nil
		}
	}
	return "", nil, err
}

func amend(o *yodel.ClientOptions, all []yodel.Description) *yodel.ClientOptions {
	for i := range all {
		if all[i].AmendClient != nil {
			o = all[i].AmendClient(o)
		}
	}
	return o
}

// persist watches r until ctx ends. It watches r again each time that Watch ends.
func persist(ctx context.Context, r discovery.Resolver, heard func([]discovery.Instance), failed func(error)) {
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
