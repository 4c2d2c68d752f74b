// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// fairness is the attacks that take places for calls from other clients.
var fairness = []attacks.Attack{
	{
		// One connection ignores its window and opens as many calls as the server has places.
		Name: "share",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, string(attacks.Block), wire.Unary)
			c.Receive()
			attacks.Spread(16<<10, 700*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, nil, nil)
				c.Flush()
			})
		},
		Check: othersGetPlaces,
		Held:  128 * mib, // goroutines of the calls that are accepted
	},
	{
		// A yodel client that keeps to its window wants more calls than the server has places.
		Name: "share2",
		Do: func(a *attacks.Attacker) {
			open(a, attacks.Block, 20_000, 700*time.Millisecond)
		},
		Check: othersGetPlaces,
		Held:  128 * mib, // goroutines of the calls that are accepted
	},
	{
		// The attacker leaves, and its one-way calls go on.
		Name: "onewaystarve", Awaits: "an end for one-way calls whose caller has gone",
		Do: func(a *attacks.Attacker) {
			// A server takes three quarters of its places from one connection, and the rest from others.
			const calls = 16 << 10
			conns := make([]*attacks.Conn, 6)
			attacks.Spread(len(conns)*calls, 700*time.Millisecond, func(i int) {
				at := i / calls
				if i%calls == 0 {
					conns[at] = a.Connect()
					conns[at].Bind(0, string(attacks.Block), wire.Unary)
					conns[at].Receive()
				}
				conns[at].Request(0, 0, wire.OneWay, nil, nil)
				if i%100 == 0 || i%calls == calls-1 {
					conns[at].Flush()
				}
			})
			a.Until(500*time.Millisecond, func(s attacks.Stats) bool { return s.Running >= 16_000 })
			for _, c := range conns {
				_ = c.Close() // what the attack is about
			}
		},
		Check: othersGetPlaces,
		Held:  128 * mib, // goroutines of the calls that are accepted
	},
}

// othersGetPlaces fails the test unless a client that comes now has hundreds of calls executed at once.
func othersGetPlaces(a *attacks.Attacker) {
	const wanted, callers = 300, 500
	a.Foundf("the attacker has %d calls running", a.Stats().Running)
	began := time.Now()
	open(a, attacks.Wait, callers, 0)
	enough := a.Until(3*time.Second, func(s attacks.Stats) bool { return s.Waiting >= wanted })
	a.Foundf("another client gets %d of %d places within %v", a.Stats().Waiting, callers, time.Since(began).Round(time.Millisecond))
	if !enough {
		a.Errorf("another client has %d calls running, want at least %d of %d within 3 s", a.Stats().Waiting, wanted, callers)
	}
}

// open has a yodel client call a method that waits, until the test ends.
func open(a *attacks.Attacker, method yodel.Method[[]byte, []byte], calls int, over time.Duration) {
	c := yodel.NewClient(yodel.Static(a.Addr), &yodel.ClientOptions{Codec: yodel.Raw, Limits: yodel.Limits{MaxOpen: calls}})
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	a.OnClose(func() {
		cancel()
		callers.Wait()
		c.Close()
	})
	attacks.Spread(calls, over, func(int) {
		callers.Go(func() { _, _ = method.Call(ctx, c, new([]byte)) })
	})
}
