// SPDX-License-Identifier: Apache-2.0

package metakeys_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/middleware/mirror"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestKeysOfMiddlewareAreNotReserved(t *testing.T) {
	for key, want := range map[string]bool{
		cache.Key: false, fallback.Key: false, mirror.Key: false, "token": false, "yodel-error-id": true, "yodel-new": true,
	} {
		if got := metakeys.Reserved(key); got != want {
			t.Errorf("Reserved(%q) is %t, want %t", key, got, want)
		}
	}
}
