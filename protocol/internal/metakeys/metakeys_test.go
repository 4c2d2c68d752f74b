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

func TestFindIgnoresCase(t *testing.T) {
	for _, test := range []struct {
		md   map[string]string
		want string
	}{
		{nil, ""},
		{map[string]string{"": "x", "idempotency_key": "x", "idempotency-keys": "x"}, ""},
		{map[string]string{"Idempotency-Key": "a"}, "a"},
		{map[string]string{"Idempotency-Key": "a", "IDEMPOTENCY-KEY": "b"}, "b"},
		{map[string]string{"Idempotency-Key": "a", "idempotency-key": ""}, ""},
	} {
		if got := metakeys.Find(test.md, "idempotency-key"); got != test.want {
			t.Errorf("%v: got %q, want %q", test.md, got, test.want)
		}
	}
}

func TestKeysOfMiddlewareAreNotReserved(t *testing.T) {
	for key, want := range map[string]bool{
		cache.Key: false, fallback.Key: false, mirror.Key: false, "token": false, "yodel-error-id": true, "yodel-new": true,
	} {
		if got := metakeys.Reserved(key); got != want {
			t.Errorf("Reserved(%q) is %t, want %t", key, got, want)
		}
	}
}
