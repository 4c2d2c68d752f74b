// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// TestBalancer checks that b fulfills the contracts of yodel.Balancer and yodel.Picker. It picks
// concurrently, so that the race detector can find data races: use go test -race.
//
//	func TestBalancer(t *testing.T) { yodeltest.TestBalancer(t, yodel.RoundRobin) }
func TestBalancer(t *testing.T, b yodel.Balancer) {
	t.Helper()
	runRules(t, balancerRules(b))
}

func balancerRules(b yodel.Balancer) []rule {
	x := balancerTrial{b}
	return []rule{
		{"empty set", "a picker for no endpoints returns nil: the last instance may go, and another may come", x.empty},
		{"one endpoint", "the only endpoint is picked, as often as it is asked for", x.one},
		{"avoids", "Pick never returns an endpoint that the call avoids: it was tried before, or is not ready", x.avoids},
		{"nil only if all are avoided", "Pick returns nil only when the call avoids every endpoint: yodel takes nil for that, and relaxes what is avoided", x.none},
		{"changes", "a picker made with the last one picks from the new set and from all of it: instances come and go", x.changes},
		{"concurrency", "Pick is called concurrently, also while the next picker is being made, and never blocks", x.concurrent},
		{"no allocations", "Pick stands on the path of each call and allocates nothing", x.allocations},
	}
}

// A balancerTrial is a test of one balancer.
type balancerTrial struct{ balance yodel.Balancer }

// withEndpoints creates endpoints that no call ever reaches, and passes them to use.
func withEndpoints(n int, use func(all []*yodel.Endpoint) error) error {
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("endpoint-%d", i+1)
	}
	known := make(chan struct{})
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
		Transport: unreachable{},
		Balancer:  func([]*yodel.Endpoint, yodel.Picker) yodel.Picker { close(known); return nil },
	})
	defer c.Close()
	<-known
	for len(c.Endpoints()) < n { // the client is about to store them
		<-time.After(time.Millisecond)
	}
	return use(c.Endpoints())
}

type unreachable struct{}

var errUnreachable = errors.New("endpoints of a balancer's trial are not connected")

func (unreachable) Dial(context.Context, string) (net.Conn, error) { return nil, errUnreachable }
func (unreachable) Listen(string) (net.Listener, error)            { return nil, errUnreachable }

// someCall returns a call for a balancer. Calls differ in their keys.
func someCall(i int) *yodel.Call {
	return &yodel.Call{Method: "Service.Method", Key: fmt.Sprintf("key %d", i)}
}

func (x balancerTrial) empty() error {
	var last yodel.Picker
	for range 2 {
		last = x.balance(nil, last)
		if last == nil {
			return errors.New("the balancer returned no picker")
		}
		if ep := last.Pick(someCall(0)); ep != nil {
			return fmt.Errorf("Pick returned %s", ep.Addr())
		}
	}
	return nil
}

func (x balancerTrial) one() error {
	return withEndpoints(1, func(all []*yodel.Endpoint) error {
		p := x.balance(all, nil)
		for i := range 100 {
			if ep := p.Pick(someCall(i)); ep != all[0] {
				return fmt.Errorf("pick %d returned %s", i+1, nameOf(ep))
			}
		}
		return nil
	})
}

func nameOf(ep *yodel.Endpoint) string {
	if ep == nil {
		return "nil"
	}
	return ep.Addr()
}

func (x balancerTrial) avoids() error {
	return withEndpoints(5, func(all []*yodel.Endpoint) error {
		p := x.balance(all, nil)
		all[0].SetReady("trial", false)
		for i := range 500 {
			call := someCall(i)
			call.Attempts().Avoid(all[1+i%4])
			ep := p.Pick(call)
			switch {
			case ep == nil || !slices.Contains(all, ep):
				return fmt.Errorf("Pick returned %s, which is none of the endpoints", nameOf(ep))
			case call.Attempts().Avoids(ep):
				return fmt.Errorf("Pick returned %s, which the call avoids", ep.Addr())
			}
		}
		return nil
	})
}

func (x balancerTrial) none() error {
	return withEndpoints(4, func(all []*yodel.Endpoint) error {
		p := x.balance(all, nil)
		for i := range 200 {
			call := someCall(i)
			left := all[i%4]
			for _, ep := range all {
				if ep != left {
					call.Attempts().Avoid(ep)
				}
			}
			if ep := p.Pick(call); ep != left {
				return fmt.Errorf("Pick returned %s, and %s is the only one that the call does not avoid", nameOf(ep), left.Addr())
			}
			call.Attempts().Avoid(left)
			if ep := p.Pick(call); ep != nil {
				return fmt.Errorf("Pick returned %s though the call avoids all", ep.Addr())
			}
		}
		return nil
	})
}

func (x balancerTrial) changes() error {
	return withEndpoints(6, func(all []*yodel.Endpoint) error {
		var last yodel.Picker
		for _, set := range [][]*yodel.Endpoint{all[:3], all, all[3:], nil, {all[5], all[0]}, all[:1]} {
			given := slices.Clone(set)
			last = x.balance(given, last)
			if last == nil {
				return errors.New("the balancer returned no picker")
			}
			for i, left := range set { // each remaining endpoint must be reachable
				call := someCall(i)
				for _, ep := range set {
					if ep != left {
						call.Attempts().Avoid(ep)
					}
				}
				if ep := last.Pick(call); ep != left {
					return fmt.Errorf("after a change Pick returned %s instead of %s", nameOf(ep), left.Addr())
				}
			}
			for i := range 100 {
				if ep := last.Pick(someCall(i)); ep != nil && !slices.Contains(set, ep) {
					return fmt.Errorf("after a change Pick returned %s, which has gone", ep.Addr())
				} else if ep == nil && len(set) > 0 {
					return errors.New("after a change Pick returned nil")
				}
			}
		}
		return nil
	})
}

func (x balancerTrial) concurrent() error {
	return withEndpoints(4, func(all []*yodel.Endpoint) error {
		const pickers, picks = 8, 2000
		p := x.balance(all, nil)
		var wg sync.WaitGroup
		outcomes := make(chan error, pickers)
		for g := range pickers {
			wg.Go(func() {
				defer func() {
					if v := recover(); v != nil {
						outcomes <- fmt.Errorf("panic: %v", v)
					}
				}()
				for i := range picks {
					if p.Pick(someCall(g*picks+i)) == nil {
						outcomes <- errors.New("Pick returned nil though no endpoint is avoided")
						return
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		for i := range 20 {
			p := x.balance(all[:1+i%4], p)
			if p.Pick(someCall(i)) == nil {
				return errors.New("Pick returned nil though no endpoint is avoided")
			}
		}
		select {
		case <-done:
		case <-time.After(balancerPatience):
			return errors.New("blocked: Pick does not return")
		}
		select {
		case err := <-outcomes:
			return err
		default:
			return nil
		}
	})
}

// balancerPatience is much longer than 16,000 picks take.
const balancerPatience = 10 * time.Second

func (x balancerTrial) allocations() error {
	return withEndpoints(4, func(all []*yodel.Endpoint) error {
		p := x.balance(all, nil)
		call := someCall(1)
		call.Attempts().Avoid(all[2])
		if n := testing.AllocsPerRun(200, func() { p.Pick(call) }); n >= 1 {
			return fmt.Errorf("Pick made %v allocations", n)
		}
		return nil
	})
}
