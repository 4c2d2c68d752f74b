// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/redis"
	"github.com/yodel-rpc/yodel/rules"
)

// opened opens a registry for a process of the tests of rules, which lasts as long as the process.
func opened(addr string) rules.Registry { return redis.New(addr, nil) }

func TestRedisKeepsRules(t *testing.T) {
	s := realserver.Redis(t)
	open := func(addr string) rules.Registry {
		r := redis.New(addr, nil)
		t.Cleanup(func() { must(t, r.Close()) })
		return r
	}
	governed.Book(t, open(s.Addr))
	governed.Restarts(t, governed.Registry{Addr: s.Addr, Restart: s.Restart, Open: open})
}
