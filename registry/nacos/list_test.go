// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/nacos"
)

// TestServices lists the services of a real server by both versions of its API.
func TestServices(t *testing.T) {
	addr := realserver.Nacos(t).Addr
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, other := connect(t, addr, nacos.Options{}), connect(t, addr, nacos.Options{Group: "other"})
	must(t, r.Announce(ctx, "list.Cart", yodel.Instance{Addr: "127.0.0.1:1"}, time.Minute))
	must(t, r.Announce(ctx, "list/Pay@@home", yodel.Instance{Addr: "127.0.0.1:1"}, time.Minute))
	must(t, other.Announce(ctx, "list.Stock", yodel.Instance{Addr: "127.0.0.1:1"}, time.Minute))
	for ctx.Err() == nil {
		names, err := r.Services(ctx)
		must(t, err)
		if slices.Contains(names, "list.Stock") {
			t.Errorf("a service of another group is listed: %q", names)
		}
		if slices.Contains(names, "list.Cart") && slices.Contains(names, "list/Pay@@home") {
			return
		}
	}
	t.Error("the services are not listed")
}
