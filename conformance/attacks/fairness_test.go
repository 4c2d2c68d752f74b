// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// orphans is how many one-way calls may go on when their client has gone.
const orphans = 16 << 10 / 4

// fairness is the attacks that take places for calls from other clients. Opening 16,384 calls is
// load that any client may cause, so latency is judged while they are open.
var fairness = []attacks.Attack{
	{
		// One connection ignores its window and opens as many calls as the server has places.
		Name: "share",
		Prepare: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, string(attacks.Block), wire.Unary)
			c.Receive()
			attacks.Spread(16<<10, 700*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, nil, nil)
				c.Flush()
			})
		},
		Check: othersGetPlaces,
	},
	{
		// A yodel client that keeps to its window wants more calls than the server has places.
		Name: "share2",
		Prepare: func(a *attacks.Attacker) {
			open(a, attacks.Block, 20_000, 700*time.Millisecond)
		},
		Check: othersGetPlaces,
	},
	{
		// 25 yodel clients, each with a connection, take all places and a part of the reserve each.
		Name: "share25",
		Prepare: func(a *attacks.Attacker) {
			for range 25 {
				open(a, attacks.Block, 1000, 0)
			}
			a.Until(3*time.Second, func(s attacks.Stats) bool { return s.Running >= 15_000 })
		},
		Check: firstCallsRun,
		Held:  160 * mib, // goroutines of the calls that are accepted
	},
	{
		// The attacker leaves, and its one-way calls would go on. A quarter of the server's places
		// are for such calls, for 30 s.
		Name: "onewaystarve",
		Prepare: func(a *attacks.Attacker) {
			const calls = 8_000
			c := a.Connect()
			c.Bind(0, string(attacks.Block), wire.Unary)
			c.Receive()
			attacks.Spread(calls, 500*time.Millisecond, func(i int) {
				c.Request(0, 0, wire.OneWay, nil, nil)
				c.Flush()
			})
			if !a.Until(3*time.Second, func(s attacks.Stats) bool { return s.Running == calls }) {
				a.Errorf("%d calls run, want %d", a.Stats().Running, calls)
			}
			_ = c.Close() // what the attack is about
		},
		Check: func(a *attacks.Attacker) {
			orphansEnd(a, 3*time.Second)
			othersGetPlaces(a)
		},
		StillRuns: orphans,
	},
	{
		// Six connections send one-way calls until the server reads no more of them, and leave.
		// Each leaves behind more than the server has read.
		Name: "onewayleave",
		Prepare: func(a *attacks.Attacker) {
			var conns sync.WaitGroup
			for range 6 {
				conns.Go(func() {
					c := a.Connect()
					c.Bind(0, string(attacks.Block), wire.Unary)
					c.Receive()
					for c.Flush() {
						for range 1000 {
							c.Request(0, 0, wire.OneWay, nil, nil)
						}
					}
					_ = c.Close() // what the attack is about
				})
			}
			conns.Wait()
		},
		Check: func(a *attacks.Attacker) {
			orphansEnd(a, 5*time.Second)
			othersGetPlaces(a)
		},
		Held:      128 * mib, // goroutines of the calls that are accepted
		StillRuns: orphans,
	},
}

// orphansEnd fails the test unless, within patience, the attacker's calls have ended but for those
// that may go on without their client.
func orphansEnd(a *attacks.Attacker, patience time.Duration) {
	if !a.Until(patience, func(s attacks.Stats) bool { return s.Running <= orphans }) {
		a.Errorf("%d calls run although their clients have gone, want at most %d", a.Stats().Running, orphans)
	}
}

// othersGetPlaces fails the test unless a client that comes now has hundreds of calls executed at
// once.
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

// firstCallsRun fails the test unless clients that come now, one after the other, have all of
// their first calls executed, which do not end.
func firstCallsRun(a *attacks.Attacker) {
	const clients, calls = 8, 20
	a.Foundf("the attackers have %d calls running", a.Stats().Running)
	for n := range int64(clients) {
		began := time.Now()
		open(a, attacks.Wait, calls, 0)
		if !a.Until(3*time.Second, func(s attacks.Stats) bool { return s.Waiting == (n+1)*calls }) {
			a.Errorf("client %d has %d of %d calls running after 3 s", n+1, a.Stats().Waiting-n*calls, calls)
			return
		}
		a.Foundf("client %d has %d of %d calls running within %v", n+1, calls, calls, time.Since(began).Round(time.Millisecond))
	}
}

// open has a yodel client call a method that waits, until the test ends.
func open(a *attacks.Attacker, method yodel.Method[[]byte, []byte], calls int, over time.Duration) {
	c := yodel.NewClient(discovery.Static(a.Addr), &yodel.ClientOptions{Codec: raw.Codec, Limits: yodel.Limits{MaxOpen: calls}})
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
