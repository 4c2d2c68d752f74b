// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// listening is how long Services waits for a first answer. The second question comes after a
// second.
const listening = 1500 * time.Millisecond

// Services returns the names of the services whose instances answer, sorted. It asks the network,
// and returns what has answered after 300 ms. If no instance has answered, or records of one are
// missing, it asks again, and returns after 1.5 s or when ctx ends. It returns an error beside the
// names if records are still missing. Multicast DNS has no list that could be complete: an instance
// whose whole answer is lost is missing without an error.
func (r *Registry) Services(ctx context.Context) ([]string, error) {
	c, err := open(r.opts.Interfaces)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, listening)
	messages, failed := c.follow(ctx)
	defer func() {
		cancel()
		c.close()
		<-failed //nolint:errcheck // it was closed
	}()
	b := newBrowser(&service{Registry: r}, time.Now())
	enough := b.began.Add(gathering)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return b.services(), b.lacks()
		case err := <-failed:
			return nil, err
		case m := <-messages:
			b.learn(m, time.Now())
		case <-timer.C:
		}
		now := time.Now()
		b.forget(now)
		if names := b.services(); len(names) > 0 && !now.Before(enough) && b.unknown() == 0 {
			return names, b.lacks()
		}
		if question := b.question(now); question != nil {
			if err := c.send(question); err != nil {
				return nil, err
			}
		}
		timer.Reset(max(min(time.Until(b.nextAsk()), 50*time.Millisecond), time.Millisecond))
	}
}

// lacks returns an error if the browser knows of instances whose services it does not know, or has
// no room for other instances.
func (b *browser) lacks() error {
	switch unknown := b.unknown(); {
	case b.full:
		return fmt.Errorf("mdns: more than %d instances have answered", maxInstances)
	case unknown > 0:
		return fmt.Errorf("mdns: the records of %d of %d instances have not arrived", unknown, len(b.entries))
	}
	return nil
}

// unknown returns the number of instances whose SRV record or TXT record the browser lacks.
func (b *browser) unknown() (n int) {
	for _, e := range b.entries {
		if !e.whole() {
			n++
		}
	}
	return n
}

// services returns the names of the services of all entries that are complete.
func (b *browser) services() []string {
	var names []string
	for _, e := range b.entries {
		if e.whole() && !e.broken && e.service != "" {
			names = append(names, e.service)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
