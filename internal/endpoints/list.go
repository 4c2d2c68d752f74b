// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/source"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// reshapeAfter is the delay after which balancers learn of a change among the suspects.
const reshapeAfter = 50 * time.Millisecond

// Update applies a set of instances from the resolver, which must have each address once. Keep
// tells an endpoint of the list what the resolver reports of it now, or returns false if a new one
// must replace it. Add returns a new endpoint. Both run with a lock held, and must not keep in.
// Update reports whether there is no endpoint. The caller must call Rebuild then.
func (l *List[O, C]) Update(instances []source.Found, keep func(in *source.Found, of O) bool, add func(in *source.Found) *Endpoint[O, C]) (none bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	back := l.err != nil // the resolver works again
	l.err, l.errText, l.heard = nil, "", time.Now()
	known := make(map[string]*Endpoint[O, C], len(l.listed))
	for _, ep := range l.listed {
		known[ep.addr] = ep
	}
	var endpoints, added []*Endpoint[O, C]
	named := make(map[string]bool, len(instances))
	for i := range instances {
		in := &instances[i]
		named[in.Addr] = in.Active
		ep := known[in.Addr]
		kept := ep != nil && keep(in, ep.owner)
		if !in.Active {
			continue
		}
		if ep != nil && !kept {
			l.gone = append(l.gone, ep)
			ep = nil
		}
		if ep == nil {
			ep = add(in)
			added = append(added, ep)
		}
		ep.unlisted.Store(false)
		ep.stranger.Store(false)
		endpoints = append(endpoints, ep)
	}
	l.Joined(owners(added))
	now := time.Now()
	kept, gone, doubted := unlist(l.listed, named, now)
	l.doubt.hear(now, len(named), back, doubted)
	endpoints, left := l.part(append(endpoints, kept...), now)
	l.listLocked(endpoints, append(gone, left...))
	l.probeLocked(now)
	return len(endpoints) == 0
}

// listLocked sets the endpoints of the next set. Gone has the endpoints that leave. After unlocking
// l.mu, the caller must call Rebuild or rebuildSoon.
func (l *List[O, C]) listLocked(endpoints, gone []*Endpoint[O, C]) {
	l.Left(owners(gone))
	l.listed, l.gone = endpoints, append(l.gone, gone...)
	l.known, l.stale = true, true
	leaving := int32(0)
	for _, ep := range endpoints {
		if ep.unlisted.Load() {
			leaving++
		}
	}
	l.leaving.Store(leaving)
	l.wakeLocked()
}

func (l *List[O, C]) wakeLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// waitLocked returns a channel that is closed when the state of the list changes.
func (l *List[O, C]) waitLocked() <-chan struct{} {
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

func owners[O any, C Conn](of []*Endpoint[O, C]) []O {
	all := make([]O, len(of))
	for i, ep := range of {
		all[i] = ep.owner
	}
	return all
}

// Fail stores a failure of the resolver, and reports whether it differs from the last one.
func (l *List[O, C]) Fail(err error) bool {
	text := err.Error()
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.err == nil || l.errText != text
	l.err, l.errText = err, text
	l.wakeLocked()
	return news
}

// Resolver returns the last failure of the resolver, or nil if it works, with its text, and when
// the resolver last reported instances.
func (l *List[O, C]) Resolver() (text string, heard time.Time, failure error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errText, l.heard, l.err
}

// Describe returns the state of the resolver for a record, without the number of instances.
func (l *List[O, C]) Describe() (s introspect.Resolver) {
	failure, heard, _ := l.Resolver()
	if !heard.IsZero() {
		s.Age = time.Since(heard)
	}
	s.Err = text.Cut(failure, record.MaxText)
	return s
}

// Listed returns the endpoints of the next set.
func (l *List[O, C]) Listed() []O {
	l.mu.Lock()
	defer l.mu.Unlock()
	return owners(l.listed)
}

// Await waits until the resolver has reported instances and, if set is true, until the first set is
// built. It returns an error if ctx ends or limit passes first, or if the client is closed. Known
// says that the resolver has reported instances.
func (l *List[O, C]) Await(ctx context.Context, limit time.Duration, set bool) (known bool, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		l.mu.Lock()
		changed, closed := l.waitLocked(), l.closed
		known = l.known
		l.mu.Unlock()
		switch {
		case known && !set, l.current.Load() != nil:
			return known, nil
		case closed:
			return known, source.ErrClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return known, context.Cause(ctx)
		case <-timer.C:
			return known, source.ErrLate
		}
	}
}

// Rebuild builds the set from the listed endpoints. It calls user code without a lock: that code
// may take long and may call the client. Only one goroutine builds sets. It builds again until the
// list has not changed meanwhile, so the last set is made from the newest list. If another
// goroutine is building, Rebuild returns at once.
func (l *List[O, C]) Rebuild() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.building {
		return
	}
	for l.stale && !l.closed {
		l.building, l.stale = true, false
		endpoints, gone := l.listed, len(l.gone)
		l.mu.Unlock()
		publish := l.Build(owners(endpoints), owners(believable(endpoints)))
		l.mu.Lock()
		if l.closed {
			break
		}
		publish()
		l.current.Store(&endpoints)
		l.wakeLocked()
		left := l.gone[:gone:gone]
		l.gone = l.gone[gone:]
		l.mu.Unlock()
		for _, ep := range left {
			ep.close(false)
		}
		l.mu.Lock()
	}
	if l.building {
		l.building = false
		l.wakeLocked()
	}
}

// rebuildSoon is Rebuild for goroutines for which calls wait. It waits until the set is built, but
// at most reshapeAfter, because a Balancer may take long.
func (l *List[O, C]) rebuildSoon() {
	if !l.Background(func(context.Context) { l.Rebuild() }) {
		return // the client is closed
	}
	timer := time.NewTimer(reshapeAfter)
	defer timer.Stop()
	for {
		l.mu.Lock()
		changed, busy := l.waitLocked(), l.stale || l.building
		l.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-l.Closing:
			return
		}
	}
}

// reshape rebuilds the set after a change among the suspects: now, or after reshapeAfter together
// with further changes.
func (l *List[O, C]) reshape(now bool) {
	l.mu.Lock()
	idle := l.closed || !l.known
	later := !idle && !now && !l.reshaping
	if later {
		l.reshaping = true
	} else if !idle && now {
		l.stale = true
	}
	l.mu.Unlock()
	switch {
	case idle:
	case now:
		l.rebuildSoon()
	case later:
		time.AfterFunc(reshapeAfter, func() {
			l.mu.Lock()
			l.reshaping, l.stale = false, true
			l.mu.Unlock()
			l.Background(func(context.Context) { l.Rebuild() })
		})
	}
}

// believable returns the endpoints that balancers see: all except suspects, or all if there are
// only suspects.
func believable[O any, C Conn](endpoints []*Endpoint[O, C]) []*Endpoint[O, C] {
	if !slices.ContainsFunc(endpoints, (*Endpoint[O, C]).isSuspect) {
		return endpoints
	}
	if left := slices.DeleteFunc(slices.Clone(endpoints), (*Endpoint[O, C]).isSuspect); len(left) > 0 {
		return left
	}
	return endpoints
}

// Close closes all endpoints at once. Later changes of the list have no effect.
func (l *List[O, C]) Close() {
	l.mu.Lock()
	l.closed = true
	endpoints := slices.Concat(l.listed, l.gone)
	l.wakeLocked()
	l.mu.Unlock()
	var wg sync.WaitGroup
	for _, ep := range endpoints {
		wg.Go(func() { ep.close(true) })
	}
	wg.Wait()
}

// Follow calls watch again and again, with pauses that grow, until ctx ends. Watch reports sets of
// instances, for Update, until it fails or stops. Follow calls failed with each failure that
// differs from the last one.
func (l *List[O, C]) Follow(ctx context.Context, watch func() error, failed func(err error)) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		began := time.Now()
		err := watch()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it stopped watching")
		}
		if l.Fail(err) {
			failed(err)
		}
		if time.Since(began) > lastBackoff {
			backoff = firstBackoff
		}
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, lastBackoff)
	}
}
