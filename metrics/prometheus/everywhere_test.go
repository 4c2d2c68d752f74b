// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"context"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/everywhere"
	"github.com/yodel-rpc/yodel/discovery"
)

// Calls over every wire are counted, on the server and on a client.
func TestMetricsOverEveryWire(t *testing.T) {
	t.Attr("rerun", "never")
	var all sync.Map // from *everywhere.Trial to *Metrics
	of := func(tr *everywhere.Trial) *Metrics {
		m, _ := all.Load(tr)
		return m.(*Metrics)
	}
	everywhere.HoldTable(t, "Prometheus", []everywhere.Guarantee{{
		Name:    "calls are counted",
		Prepare: func(tr *everywhere.Trial) { all.Store(tr, New(nil)) },
		Server: func(_ *testing.T, tr *everywhere.Trial) {
			tr.NewServer = func(o *yodel.ServerOptions) *yodel.Server { return of(tr).NewServer("all", o) }
		},
		Client: func(_ *testing.T, tr *everywhere.Trial) {
			tr.NewClient = func(r discovery.Resolver, o *yodel.ClientOptions) *yodel.Client { return of(tr).NewClient("all", r, o) }
		},
		Check: func(ctx context.Context, c *everywhere.Cell) error {
			if _, err := c.Call(ctx, yodel.Call{}); err != nil {
				return err
			}
			return c.Seen(ctx, "the metrics do not have the call", func() bool {
				return c.Side != "client" && counted(of(c.Trial), "yodel_server_calls_total", c.Method()) == 1 ||
					c.Side != "server" && counted(of(c.Trial), "yodel_client_calls_total", c.Method()) == 1
			})
		},
	}})
}

// counted returns the value of a counter of calls of a method that have succeeded.
func counted(m *Metrics, name, method string) float64 {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(m)
	families, err := r.Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		for _, one := range f.GetMetric() {
			labels := make(map[string]string)
			for _, l := range one.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == name && labels["method"] == method && labels["code"] == "ok" {
				return one.GetCounter().GetValue()
			}
		}
	}
	return 0
}
