// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/redis"
)

func TestRedisKeepsRules(t *testing.T) {
	r := redis.New(realserver.Redis(t).Addr, nil)
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	governed.Book(t, r)
}
