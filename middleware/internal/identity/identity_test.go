// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/middleware/internal/identity"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// Every two calls that differ in anything have different keys, however their parts join.
func TestDifferentCallsHaveDifferentKeys(t *testing.T) {
	parts := []string{"", "a", "b", "ab", "\x01a", "\x00"}
	for _, o := range []*identity.Options{{}, {Vary: []string{"a", "b"}}, {Key: func(_ context.Context, call *yodel.Call) string { return call.Key }}} {
		seen := map[string]string{}
		for _, method := range parts {
			for _, tenant := range parts {
				for _, key := range parts {
					for _, value := range parts {
						for _, md := range []yodel.Metadata{nil, {"a": value}, {"b": value}, {"a": value, "b": value}} {
							for _, args := range []any{[]byte(value), []byte(method + value)} {
								call := &yodel.Call{Method: method, Tenant: tenant, Metadata: md, Args: args, Codec: raw.Codec}
								if o.Key != nil {
									call.Key = key
								}
								id := identity.Of(t.Context(), call, o)
								what := fmt.Sprintf("%q %q %q %q %q", call.Method, call.Tenant, call.Key, call.Metadata, args)
								if other, ok := seen[string(id.Key)]; ok && other != what {
									t.Fatalf("%s is taken for %s", what, other)
								}
								seen[string(id.Key)] = what
								id.Release()
							}
						}
					}
				}
			}
		}
	}
}
