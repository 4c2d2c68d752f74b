// SPDX-License-Identifier: Apache-2.0

package kinds_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/leak"
)

func TestMain(m *testing.M) { leak.Verify(m) }

func TestNames(t *testing.T) {
	for name, want := range map[string]string{"unary": "a unary method", "feed": "a feed", "upload": "an upload", "duplex": "a duplex", "unknown": "a unknown"} {
		kind, stream := kinds.Stream(name)
		if name == "unknown" {
			kind = 99
		}
		if kinds.Name(kind) != name || kinds.OneOf(kind) != want || stream != (name != "unary" && name != "unknown") {
			t.Errorf("%s: got %d, %t, %s, %s", name, kind, stream, kinds.Name(kind), kinds.OneOf(kind))
		}
	}
}
