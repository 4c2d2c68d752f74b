// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/unread"
)

// A BrokenSetting is a setting of an operator for an instance that cannot be read. It does not
// count.
type BrokenSetting struct {
	Service string
	Addr    string // of the instance
	Key     string // of the record in the registry; the address if the registry does not tell
	Problem string
}

// String returns the setting in English.
func (b *BrokenSetting) String() string {
	return fmt.Sprintf("the setting of %s of %s cannot be read, and does not count: %s (record %s)", b.Addr, b.Service, b.Problem, b.Key)
}

// settingsAtOnce bounds how many services BrokenSettings reads at the same time.
const settingsAtOnce = 16

// BrokenSettings returns the settings of operators in a registry that cannot be read, sorted by
// service and address. It reads those of all services, also those without instances. If the
// registry cannot list the services with settings, or keeps none, there are no results. If it
// returns an error, there may be others.
func BrokenSettings(ctx context.Context, registry any) ([]BrokenSetting, error) {
	lister, ok := registry.(interface {
		KeptServices(ctx context.Context, kind string) ([]string, error)
	})
	from := yodel.Description{}.Over(registry)
	if !ok || from.Overrides == nil {
		return nil, nil
	}
	services, failed := lister.KeptServices(ctx, "overrides")
	if failed != nil {
		failed = fmt.Errorf("list the services with settings of operators: %w", failed)
	}
	var mu sync.Mutex
	var all []BrokenSetting
	var wg sync.WaitGroup
	next := make(chan string)
	for range min(settingsAtOnce, len(services)) {
		wg.Go(func() {
			for service := range next {
				broken, err := brokenOf(ctx, service, from.Overrides(service))
				mu.Lock()
				all, failed = append(all, broken...), cmp.Or(failed, err)
				mu.Unlock()
			}
		})
	}
	for _, service := range services {
		next <- service
	}
	close(next)
	wg.Wait()
	sort.Slice(all, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Addr, b.Addr)) < 0
	})
	return all, failed
}

// brokenOf returns the settings for a service that cannot be read.
func brokenOf(ctx context.Context, service string, of discovery.Resolver) (broken []BrokenSetting, err error) {
	if of == nil {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var keys unread.List
	read := false
	err = Bounded(of).Watch(unread.With(ctx, &keys), func(all []discovery.Instance) {
		defer cancel()
		if read {
			return
		}
		read = true
		records := keys.Records()
		for _, in := range all {
			problem := in.Metadata["problem"]
			if problem == "" {
				continue
			}
			key := in.Addr
			for _, r := range records {
				if r.Instance == in.Addr {
					key = short(r.Key)
				}
			}
			broken = append(broken, BrokenSetting{service, in.Addr, key, problem})
		}
	})
	if read {
		return broken, nil
	}
	return nil, fmt.Errorf("read the settings of operators for %s: %w", service, cmp.Or(err, context.Cause(ctx), errors.New("the registry has stopped")))
}
