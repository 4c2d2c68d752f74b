// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"context"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/conformance/everywhere"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/redis"

	"github.com/yodel-rpc/yodel"
)

// Keys that Redis remembers, and limits that it counts, hold over every wire.
func TestRedisOverEveryWire(t *testing.T) {
	t.Attr("rerun", "never")
	store := redis.New(realserver.Redis(t).Addr, nil)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	everywhere.HoldTable(t, "Redis", []everywhere.Guarantee{
		{
			Name:   "once in Redis",
			Only:   everywhere.OneExecution,
			Lacks:  everywhere.LacksKeys,
			Server: func(_ *testing.T, tr *everywhere.Trial) { tr.Options.Keys = once.With(&once.Options{Store: store}) },
			Check:  func(ctx context.Context, c *everywhere.Cell) error { return c.ExecutesOnce(ctx, c.Name()) },
		},
		{
			Name: "rate in Redis",
			Server: func(t *testing.T, tr *everywhere.Trial) {
				limit := &rate.Limit{PerSecond: 1e-3, Burst: 2, Batch: 1, Name: t.Name(), Store: store, Timeout: 10 * time.Second, Strict: true}
				tr.Options.Middleware = []yodel.Middleware{rate.With(limit)}
			},
			Check: everywhere.CheckRate,
		},
	})
}
