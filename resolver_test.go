// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"sync"

	"github.com/yodel-rpc/yodel"
)

type resolverFunc func(ctx context.Context, update func([]yodel.Instance)) error

func (f resolverFunc) Watch(ctx context.Context, update func([]yodel.Instance)) error {
	return f(ctx, update)
}

// A settable resolver is told by the test which instances there are.
type settable struct {
	mu        sync.Mutex
	instances []yodel.Instance
	changed   chan struct{}
	err       error // of Watch; nil while it works
}

func newSettable(addrs ...string) *settable {
	r := &settable{changed: make(chan struct{})}
	r.set(addrs...)
	return r
}

func (r *settable) set(addrs ...string) {
	instances := make([]yodel.Instance, len(addrs))
	for i, addr := range addrs {
		instances[i].Addr = addr
	}
	r.setInstances(instances)
}

func (r *settable) setInstances(instances []yodel.Instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instances, r.err = instances, nil
	close(r.changed)
	r.changed = make(chan struct{})
}

// fail makes Watch fail until other instances are set.
func (r *settable) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *settable) Watch(ctx context.Context, update func([]yodel.Instance)) error {
	for {
		r.mu.Lock()
		instances, changed, err := r.instances, r.changed, r.err
		r.mu.Unlock()
		if err != nil {
			return err
		}
		update(instances)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// A named resolver knows of which service the instances are.
type named struct {
	*settable
	service string
}

func (r *named) ServiceName() string { return r.service }
