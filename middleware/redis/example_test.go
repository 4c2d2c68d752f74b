// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"os"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/redis"
)

// All servers that use the store share one rate limit, and remember the idempotency keys of each
// other's calls.
func Example() {
	store := redis.New("10.0.0.1:6379", &redis.Options{Password: os.Getenv("REDIS_PASSWORD")})
	defer store.Close()
	s := yodel.NewServer(&yodel.ServerOptions{
		Middleware: []yodel.Middleware{rate.With(&rate.Limit{PerSecond: 1000, Store: store})},
		Keys:       once.With(&once.Options{Store: store}),
	})
	_ = s // register methods, and serve
	// Output:
}
