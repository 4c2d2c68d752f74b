// SPDX-License-Identifier: Apache-2.0

package mdns_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
)

// TestServices lists the services that another registry announces, and none after it has withdrawn
// them. Instances of another type are not listed.
func TestServices(t *testing.T) {
	const kind = "_yodel-list._tcp"
	server, other, r := join(t, kind), join(t, "_yodel-other._tcp"), join(t, kind)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if names, err := r.Services(ctx); err != nil || len(names) > 0 {
		t.Errorf("without instances: %q, %v", names, err)
	}
	for _, one := range []struct {
		announce func(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error
		service  string
		addr     string
	}{
		{server.Announce, "shop.Cart", "127.0.0.1:1"}, {server.Announce, "shop.Cart", "127.0.0.1:2"},
		{server.Announce, "shop.Pay@home", "127.0.0.1:1"}, {other.Announce, "shop.Stock", "127.0.0.1:1"},
	} {
		if err := one.announce(ctx, one.service, discovery.Instance{Addr: one.addr}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"shop.Cart", "shop.Pay@home"}
	for {
		names, err := r.Services(ctx)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("got %q, want %q, %v", names, want, err)
		}
		if slices.Equal(names, want) {
			break
		}
	}
	ended, end := context.WithCancel(ctx)
	end()
	if names, err := r.Services(ended); err != nil || len(names) > 0 {
		t.Errorf("with an ended context: %q, %v", names, err)
	}
}
