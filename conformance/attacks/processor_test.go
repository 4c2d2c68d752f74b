// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// processor is the attacks on processor time. The bounds of CPU include the good client's calls,
// which cost about 30 ms in a window.
var processor = []attacks.Attack{
	{
		// Calls without a token, with as much metadata as is accepted.
		Name: "preauth", Victim: authorized,
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, string(attacks.Block), wire.Unary)
			c.Receive()
			fields := &wire.Fields{Metadata: smallPairs(16<<10 - 64)}
			attacks.Spread(1000, 800*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, fields, nil)
				c.Flush()
			})
			if !c.Await(1000, 3*time.Second) {
				a.Errorf("%d of 1000 calls were answered", c.Replies.Load())
			}
		},
		CPU: 400 * time.Millisecond, // 0.4 ms a call, of which the parsing of 16 KiB is a tenth
	},
	{
		// Calls of methods that do not exist, each with another name, of a server with 1000
		// methods.
		Name: "nearest1", Victim: thousand,
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Receive()
			attacks.Spread(300, 800*time.Millisecond, func(i int) {
				c.Bind(0, fmt.Sprintf("Warehouse.TakeOutOfSektion%d", i), wire.Unary)
				c.Request(0, attacks.ID(i), 0, nil, nil)
				c.Flush()
			})
			if !c.Await(300, 3*time.Second) {
				a.Errorf("%d of 300 calls were answered", c.Replies.Load())
			}
		},
		CPU: 300 * time.Millisecond,
	},
	{
		// 3000 calls of one method that does not exist.
		Name: "unknown1000", Victim: thousand,
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, "Warehouse.TakeOutOfSektion17", wire.Unary)
			c.Receive()
			attacks.Spread(3000, 800*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, nil, nil)
				c.Flush()
			})
			if !c.Await(3000, 5*time.Second) {
				a.Errorf("%d of 3000 calls were answered", c.Replies.Load())
			}
		},
		CPU: 300 * time.Millisecond,
	},
	{
		// One method that does not exist, on each of 300 connections.
		Name: "unknown on many connections", Victim: thousand,
		Do: func(a *attacks.Attacker) {
			attacks.Spread(300, 800*time.Millisecond, func(i int) {
				c := a.Connect()
				c.Bind(0, fmt.Sprintf("Warehouse.TakeOutOfSektion%d", i), wire.Unary)
				c.Request(0, attacks.ID(i), 0, nil, nil)
				c.Receive()
				c.Flush()
			})
		},
		CPU: 500 * time.Millisecond, // 300 connections cost 200 ms of it
	},
	{
		// Connections that say something else than the protocol: what is logged of them must not
		// grow with their number.
		Name: "settingsflood",
		Do: func(a *attacks.Attacker) {
			const bad = 3000
			before := a.Stats()
			attacks.Spread(bad, 900*time.Millisecond, func(int) {
				c := a.Dial()
				c.Raw([]byte(wire.Preface))
				c.Frame(wire.Header{Type: wire.Settings}, []byte{0xff, 0xff})
				c.Flush()
				_ = c.Close()
			})
			logged := a.Stats().Lines - before.Lines
			a.Foundf("%d lines were logged of %d bad connections", logged, bad)
			if logged > 100 {
				a.Errorf("%d lines were logged of %d bad connections, want at most 100", logged, bad)
			}
		},
	},
	{
		// 12,000 ordered calls of one key that are refused, each in a higher epoch than the one
		// before.
		Name: "ordered refusals",
		Do: func(a *attacks.Attacker) {
			const calls = 12_000
			c := a.Connect()
			c.Bind(0, string(attacks.Pause), wire.Unary)
			c.Bind(1, "T.Nothing", wire.Unary)
			c.Receive()
			c.Request(0, attacks.ID(0), 0, &wire.Fields{Key: []byte("k"), Epoch: 1}, nil)
			for i := 1; i < calls; i++ {
				c.Request(1, attacks.ID(i), 0, &wire.Fields{Key: []byte("k"), Epoch: uint64(i + 1)}, nil)
			}
			c.Flush()
			if !c.Await(calls, 10*time.Second) {
				a.Errorf("%d of %d calls were answered", c.Replies.Load(), calls)
			}
		},
		CPU: 500 * time.Millisecond,
	},
	{
		// 300,000 pings.
		Name: "ping flood",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Receive()
			attacks.Spread(300, 800*time.Millisecond, func(int) {
				for range 1000 {
					c.Frame(wire.Header{Type: wire.Ping}, make([]byte, 8))
				}
				c.Flush()
			})
		},
		Held: 16 * mib,
	},
	{
		Name: "ping flood without reading",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			attacks.Spread(300, 500*time.Millisecond, func(int) {
				for range 1000 {
					c.Frame(wire.Header{Type: wire.Ping}, make([]byte, 8))
				}
				c.Flush()
			})
		},
		Held: 16 * mib,
	},
	{
		// 50,000 calls that are canceled at once.
		Name: "rapid reset",
		Do: func(a *attacks.Attacker) {
			const rounds, calls = 100, 500
			c := a.Connect()
			c.Bind(0, string(attacks.Block), wire.Unary)
			c.Receive()
			ids := make([]uint32, calls)
			for i := range ids {
				ids[i] = attacks.ID(i)
			}
			attacks.Spread(rounds, 800*time.Millisecond, func(round int) {
				for i := range ids {
					c.Request(0, ids[i], 0, nil, nil)
					c.Frame(wire.Header{Type: wire.Cancel, Arg: 1, ID: ids[i]}, nil)
					ids[i] = wire.NextID(ids[i])
				}
				c.Flush()
				c.Await(int64((round+1)*calls), time.Second)
			})
			if !c.Await(rounds*calls, 3*time.Second) {
				a.Errorf("%d of %d calls were answered", c.Replies.Load(), rounds*calls)
			}
		},
		Held: 16 * mib,
	},
	{
		// One number that is given to 300,000 methods.
		Name: "rebinding",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Receive()
			attacks.Spread(300, 800*time.Millisecond, func(int) {
				for range 1000 {
					c.Bind(0, string(attacks.Block), wire.Unary)
				}
				c.Flush()
			})
			c.Request(0, attacks.ID(0), 0, &wire.Fields{Timeout: 1000}, nil)
			c.Flush()
			if !c.Await(1, 3*time.Second) {
				a.Error("the connection does not answer any more")
			}
		},
		Held: 16 * mib,
	},
}
