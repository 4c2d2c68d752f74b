// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
)

// This file has the rules for a registry whose server is in trouble or under load.

func (x registryTrial) restarted() error {
	if x.Kill == nil || x.Restart == nil {
		return missing("the server cannot be restarted with its data")
	}
	return x.outage(x.Kill, x.Restart, true)
}

func (x registryTrial) restartedEmpty() error {
	if x.Kill == nil || x.RestartEmpty == nil {
		return missing("the server cannot be restarted without its data")
	}
	return x.outage(x.Kill, x.RestartEmpty, false)
}

func (x registryTrial) hangs() error {
	if x.Stop == nil || x.Continue == nil {
		return missing("the server cannot be stopped and continued")
	}
	return x.outage(x.Stop, x.Continue, false)
}

// outage watches a service during an outage of its registry. stored says whether announced records
// survive the outage.
func (x registryTrial) outage(down, up func(), stored bool) error {
	service := x.name()
	addrs := []string{"127.0.0.1:1"}
	stop := x.keep(service, discovery.Instance{Addr: addrs[0]}, x.TTL)
	defer stop()
	if stored {
		addrs = append(addrs, "127.0.0.1:2")
		if err := x.announce(service, x.long(), discovery.Instance{Addr: addrs[1]}); err != nil {
			return err
		}
	}
	old := x.follow(service)
	defer old.cancel()
	if err := old.until(addrs...); err != nil {
		return err
	}
	down()
	late := x.follow(service) // has no instances yet, and waits
	defer late.cancel()
	err := x.refused(service)
	<-time.After(x.TTL / 4) // a killed server refuses connections at once, but watchers notice it later
	err = errors.Join(err, old.neverEmpty(), late.saidNothing())
	up()
	if err != nil {
		return err
	}
	began := time.Now()
	fresh := x.follow(service)
	defer fresh.cancel()
	if err = fresh.until(addrs...); err != nil {
		return fmt.Errorf("a client that began afterwards: %w", err)
	}
	took := time.Since(began)
	x.logf("%v after the server was back, the records were", took.Round(time.Millisecond))
	if took > x.TTL+x.Late {
		err = fmt.Errorf("the records were back after %v, and the ttl is %v", took, x.TTL)
	}
	if stored {
		err = errors.Join(err, old.neverEmpty())
	}
	addrs = append(addrs, "127.0.0.1:3")
	err = errors.Join(err, x.announce(service, x.long(), discovery.Instance{Addr: addrs[len(addrs)-1]}))
	for _, w := range []*watch{old, late, fresh} {
		err = errors.Join(err, w.until(addrs...), w.stop())
	}
	stop()
	return errors.Join(err, x.withdraw(service, addrs...))
}

// refused checks that calls fail if the server does not answer, and that they end when their
// contexts are canceled.
func (x registryTrial) refused(service string) error {
	try := func(what string, do func(ctx context.Context) error) error {
		ctx, cancel := context.WithCancel(context.Background()) // a deadline could be met without regard to the context
		defer time.AfterFunc(x.TTL, cancel).Stop()
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- do(ctx) }()
		select {
		case err := <-ended:
			if err == nil {
				return fmt.Errorf("%s succeeded without a server", what)
			}
			return nil
		case <-time.After(x.TTL + x.Late):
			return fmt.Errorf("%s does not end with its context", what)
		}
	}
	w := resolverTrial{x.Service(service), nil, nil, x.patience}.watch(0) // the server does not answer
	return errors.Join(
		try("Announce", func(ctx context.Context) error {
			return x.Registrar.Announce(ctx, service, discovery.Instance{Addr: "127.0.0.1:9"}, x.TTL)
		}),
		try("Withdraw", func(ctx context.Context) error { return x.Registrar.Withdraw(ctx, service, "127.0.0.1:9") }),
		w.saidNothing(), w.stop())
}

// saidNothing checks that there was no update, because the instances cannot be known.
func (w *watch) saidNothing() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, update := range w.copies {
		if len(update) == 0 {
			return errors.New("update said that there are no instances, which nobody can know")
		}
	}
	return nil
}

func (x registryTrial) slow() error {
	if x.Slow == nil {
		return missing("the server cannot be slowed down")
	}
	x.Slow(x.TTL / 4)
	defer x.Slow(0)
	return x.neverGone(3 * x.TTL) // a busy machine is slow too
}

func (x registryTrial) expired() error {
	if x.Expire == nil {
		return missing("leases or sessions cannot be ended")
	}
	service := x.name()
	in := discovery.Instance{Addr: "127.0.0.1:1"}
	stop := x.keep(service, in, x.TTL)
	w := x.follow(service)
	err := w.until(in.Addr)
	if err == nil {
		x.Expire()
		<-time.After(x.TTL) // the record may have been gone during this time
		fresh := x.follow(service)
		err = errors.Join(fresh.until(in.Addr), fresh.stop(), w.until(in.Addr))
	}
	stop()
	return errors.Join(err, w.stop(), x.withdraw(service, in.Addr))
}

// many announces a large service, a few records at a time.
func (x registryTrial) many() error {
	service := x.name()
	addr := func(i int) string { return fmt.Sprintf("10.%d.%d.%d:8972", i>>16, i>>8&255, i&255) }
	all := func(do func(i int) error) error {
		var wg sync.WaitGroup
		faults := make([]error, 16)
		for worker := range faults {
			wg.Go(func() {
				for i := worker; i < x.Instances && faults[worker] == nil; i += len(faults) {
					faults[worker] = do(i)
				}
			})
		}
		wg.Wait()
		return errors.Join(faults...)
	}
	began := time.Now()
	ttl := 10 * x.long()
	if err := all(func(i int) error { return x.announce(service, ttl, discovery.Instance{Addr: addr(i), Zone: "a"}) }); err != nil {
		return err
	}
	announced := time.Now()
	w := x.follow(service)
	number := func(n int) error {
		return w.see(fmt.Sprint(n, " instances"), func(got []discovery.Instance) bool { return len(got) == n })
	}
	err := number(x.Instances)
	seen := time.Now()
	if err == nil {
		err = errors.Join(x.withdraw(service, addr(0)), number(x.Instances-1))
	}
	changed := time.Now()
	x.logf("%d instances announced in %v, seen by a new client in %v; one change among them in %v", x.Instances,
		announced.Sub(began).Round(time.Millisecond), seen.Sub(announced).Round(time.Millisecond), changed.Sub(seen).Round(time.Millisecond))
	// The client is stopped first: it would keep an update for each of the withdrawals.
	return errors.Join(err, w.stop(), all(func(i int) error { return x.withdraw(service, addr(i)) }))
}
