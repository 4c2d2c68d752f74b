// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/unread"
)

// retryAfter is the pause after a resolver has failed.
const retryAfter = time.Second

// watched follows the instances of a service.
type watched struct {
	cancel context.CancelFunc
	ended  chan struct{}
	first  chan struct{} // closed when the resolver has said something

	mu        sync.Mutex
	said      bool
	instances []discovery.Instance
	err       error

	unread unread.List // the records that the resolver cannot read
}

// watch returns what follows the given services. If these are all services, it stops following
// others.
func (f *Fleet) watch(services []string, all bool) ([]*watched, error) {
	watches := make([]*watched, len(services))
	var missing []int
	wanted := make(map[string]bool, len(services))
	f.mu.Lock()
	for i, name := range services {
		wanted[name] = true
		if watches[i] = f.services[name]; watches[i] == nil {
			missing = append(missing, i)
		}
	}
	var gone []*watched
	for name, w := range f.services {
		if all && !wanted[name] {
			gone = append(gone, w)
			delete(f.services, name)
		}
	}
	f.mu.Unlock()
	for _, w := range gone {
		w.stop()
	}
	for _, i := range missing {
		w, err := f.follow(services[i], f.source.Service(services[i]))
		if err != nil {
			return nil, err
		}
		watches[i] = w
	}
	return watches, nil
}

// follow returns what follows a service, and starts it unless another Read has started it.
func (f *Fleet) follow(name string, r discovery.Resolver) (*watched, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errClosed
	}
	if w := f.services[name]; w != nil {
		return w, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watched{cancel: cancel, ended: make(chan struct{}), first: make(chan struct{})}
	f.services[name] = w
	go w.run(ctx, r)
	return w, nil
}

// run calls the resolver until ctx ends. It calls it again whenever it returns.
func (w *watched) run(ctx context.Context, r discovery.Resolver) {
	defer close(w.ended)
	for {
		err := w.follow(ctx, r)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.err = err
		w.sayLocked()
		w.mu.Unlock()
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
		}
	}
}

// follow calls the resolver once, and returns why it has ended.
func (w *watched) follow(ctx context.Context, r discovery.Resolver) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("the resolver panicked: %v", value)
		}
	}()
	err = Bounded(r).Watch(unread.With(ctx, &w.unread), func(instances []discovery.Instance) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.instances, w.err = instances, nil
		w.sayLocked()
	})
	return cmp.Or(err, errors.New("the resolver has stopped"))
}

func (w *watched) sayLocked() {
	if !w.said {
		w.said = true
		close(w.first)
	}
}

func (w *watched) stop() {
	w.cancel()
	<-w.ended
}

// get returns the instances that the resolver has named last. It waits for the first ones until ctx
// ends.
func (w *watched) get(ctx context.Context) ([]discovery.Instance, error) {
	select {
	case <-w.first: // also if ctx has ended
	default:
		select {
		case <-w.first:
		case <-w.ended:
			return nil, errors.New("the service is no longer watched")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.instances, w.err
}
