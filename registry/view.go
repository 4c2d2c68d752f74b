// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/unread"
)

// A View receives the keys below a prefix from a Store. It combines changes that follow each other
// closely into one update of the client's set, because the cost of an update grows with the size of
// the set. With 5,000 instances and 1,000 changes a second, single updates would take all of the
// client's time.
type View struct {
	of *service

	mu      sync.Mutex
	records map[string]record // nil before the first Replace
	news    chan struct{}     // capacity 1
}

// A record is a value and the instance that it describes.
type record struct {
	value    []byte
	instance discovery.Instance // without an address if the value cannot be read
	problem  string             // why the value, or a part of it, cannot be read; empty if all of it can
}

// pause is the least time between two updates.
const pause = 20 * time.Millisecond

func newView(of *service) *View { return &View{of: of, news: make(chan struct{}, 1)} }

// Replace sets all keys and values. It keeps no reference to all or to the values.
func (v *View) Replace(all map[string][]byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.records
	v.records = make(map[string]record, len(all))
	changed := known == nil || len(known) != len(all)
	for key, value := range all {
		old, ok := known[key]
		if !ok || !bytes.Equal(old.value, value) {
			old, changed = v.parse(key, value), true
		}
		v.records[key] = old
	}
	if changed {
		v.changed()
	}
}

// Put sets the value of a key. It keeps no reference to value.
func (v *View) Put(key string, value []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.records == nil || bytes.Equal(v.records[key].value, value) && len(value) > 0 {
		return
	}
	v.records[key] = v.parse(key, value)
	v.changed()
}

// Delete removes a key.
func (v *View) Delete(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.records[key]; ok {
		delete(v.records, key)
		v.changed()
	}
}

func (v *View) changed() {
	select {
	case v.news <- struct{}{}:
	default:
	}
}

// parse reads a record. If the record cannot be read at all, parse logs it once and no instance is
// made of it. If only parts of it can be read, parse logs it and uses these parts. Tell names both
// to the caller of Watch: see package unread.
func (v *View) parse(key string, value []byte) record {
	r := record{value: bytes.Clone(value)}
	s := v.of
	var err error
	if r.instance, err = s.opts.Layout.Instance(strings.TrimPrefix(key, s.prefix), r.value); err != nil {
		r.problem = err.Error()
		cmp.Or(s.opts.Logger, slog.Default()).Warn("yodel: a record in the registry cannot be read, or not all of it", "record", key, "err", err)
	}
	return r
}

// tell calls update with the instances each time that they have changed, until ctx ends.
func (v *View) tell(ctx context.Context, update func([]discovery.Instance)) {
	for {
		select {
		case <-v.news:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		instances, bad := v.read()
		unread.Set(ctx, v.of, bad)
		update(instances)
		select {
		// The pause limits updates to at most a fifth of a processor.
		case <-time.After(max(pause, 4*time.Since(began))):
		case <-ctx.Done():
			return
		}
	}
}

// read returns the instances, and the records of which something cannot be read.
func (v *View) read() (instances []discovery.Instance, bad []unread.Record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	instances = make([]discovery.Instance, 0, len(v.records))
	for _, key := range slices.Sorted(maps.Keys(v.records)) {
		r := v.records[key]
		if r.instance.Addr != "" {
			instances = append(instances, r.instance)
		}
		if r.problem != "" {
			bad = append(bad, unread.Record{Key: key, Problem: r.problem, Instance: r.instance.Addr})
		}
	}
	return Distinct(instances), bad
}
