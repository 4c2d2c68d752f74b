// SPDX-License-Identifier: Apache-2.0

// Package unread carries the records that a registry cannot read to the caller of Resolver.Watch. A
// Watch names only the instances that it can read, so its caller would not learn that some are
// missing. The context carries the list because it passes all wrappers of resolvers.
package unread

import (
	"cmp"
	"context"
	"sort"
	"sync"
)

// A Record is a record of which something cannot be read.
type Record struct {
	Key     string // names the record in its registry
	Problem string
	// Instance is the address of the instance that is made of the rest of the record. It is empty
	// if no instance is made of it.
	Instance string
}

// A List has the records that the resolvers below a Watch cannot read. The zero value is empty. It
// may be used concurrently.
type List struct {
	reading sync.Mutex
	of      map[any][]Record // by resolver
}

type key struct{}

// With returns a context for Watch. The resolvers that get it fill list.
func With(ctx context.Context, list *List) context.Context {
	return context.WithValue(ctx, key{}, list)
}

// Set replaces the records of a resolver in the list of ctx, if ctx has one. A resolver calls it
// before each update of its Watch. It must not change records later.
func Set(ctx context.Context, resolver any, records []Record) {
	list, ok := ctx.Value(key{}).(*List)
	if !ok {
		return
	}
	list.reading.Lock()
	defer list.reading.Unlock()
	if list.of == nil {
		list.of = make(map[any][]Record)
	}
	list.of[resolver] = records
	if len(records) == 0 {
		delete(list.of, resolver)
	}
}

// Records returns the records of all resolvers, sorted by key.
func (l *List) Records() []Record {
	l.reading.Lock()
	defer l.reading.Unlock()
	var all []Record
	for _, records := range l.of {
		all = append(all, records...)
	}
	sort.Slice(all, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Problem, b.Problem)) < 0
	})
	return all
}
