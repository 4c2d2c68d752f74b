// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"testing"

	"github.com/smallnest/rpcx/client"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/conformance/rolling"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
)

type (
	rollingJob  struct{ ID int64 }
	rollingDone struct{ Answer string }
)

const rollingWork yodel.Method[rollingJob, rollingDone] = "Work.Do"

// serveRolling returns a server whose method answers with the answer to the call.
func serveRolling(o *yodel.ServerOptions, execute rolling.Execute) (*yodel.Server, error) {
	o.Codecs = []yodel.Codec{msgpack.Codec}
	o.Protocols = []yodel.Protocol{rpcx.Protocol}
	s := yodel.NewServer(o)
	rollingWork.Handle(s, func(_ context.Context, in *rollingJob) (*rollingDone, error) {
		return &rollingDone{execute(in.ID)}, nil
	})
	return s, nil
}

// rollingPlan has XClients with a fail mode. Each has some of the callers, because the callers of a
// shared one move its round robin on.
func rollingPlan(mode client.FailMode, callersOfEach int) rolling.Plan {
	var shared client.XClient
	return rolling.Plan{Kind: "rpcx", Repeats: mode == client.Failover, Dial: func(t testing.TB, addrs []string, caller int) rolling.Call {
		if caller%callersOfEach == 0 {
			var pairs []*client.KVPair
			for _, addr := range addrs {
				pairs = append(pairs, &client.KVPair{Key: "tcp@" + addr})
			}
			d, err := client.NewMultipleServersDiscovery(pairs)
			if err != nil {
				t.Fatal(err)
			}
			mine := client.NewXClient("Work", mode, client.RoundRobin, d, option("msgpack"))
			t.Cleanup(func() { _ = mine.Close() }) // its connections may have ended
			shared = mine
		}
		x := shared
		return func(ctx context.Context, id int64) (string, error) {
			reply := new(rollingDone)
			err := x.Call(ctx, "Do", &rollingJob{id}, reply)
			return reply.Answer, err
		}
	}}
}

// rollingPlans are those for the fail modes of rpcx. Failtry repeats a call at the same server and
// Failover elsewhere, executed or not.
var rollingPlans = map[string]func() rolling.Plan{
	"Failfast": func() rolling.Plan { return rollingPlan(client.Failfast, 4) },
	"Failover": func() rolling.Plan { return rollingPlan(client.Failover, 1) },
}

// What servers have executed for unchanged clients of rpcx has its reply while the servers are
// replaced one after the other.
func TestRollingRestarts(t *testing.T) {
	t.Attr("rerun", "never")
	for mode, plan := range rollingPlans {
		t.Run(mode, func(t *testing.T) { rolling.Run(t, plan()) })
	}
	t.Run("Failtry", func(t *testing.T) {
		if !rolling.Long() {
			t.Skip("with static addresses it differs from Failfast only in how often a connection is refused")
		}
		rolling.Run(t, rollingPlan(client.Failtry, 4))
	})
	t.Run("handover", func(t *testing.T) {
		p := rollingPlan(client.Failfast, 4)
		p.Handover = true
		rolling.Run(t, p)
	})
}

// Servers that do not drain lose calls, or make clients with Failover repeat executed ones, and the
// test notices it.
func TestRollingRestartsWithoutADrain(t *testing.T) {
	t.Attr("rerun", "never")
	for mode, plan := range rollingPlans {
		t.Run(mode, func(t *testing.T) { rolling.Control(t, plan()) })
	}
}
