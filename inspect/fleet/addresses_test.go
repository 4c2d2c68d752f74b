// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// Only gRPC's own services are left out, and not those whose names begin like them.
func TestServicesOfAServer(t *testing.T) {
	info := &introspect.Info{}
	for _, name := range []string{
		"yodel.Ping", "grpc.health.v1.Health.Check", "grpc.reflection.v1.ServerReflection.ServerReflectionInfo",
		"grpc.examples.echo.Echo.UnaryEcho", "grpc.Own.Get", "Shop.Buy",
	} {
		info.Methods = append(info.Methods, introspect.Method{Name: name})
	}
	want := []string{"Shop", "grpc.Own", "grpc.examples.echo.Echo"}
	if got := fleet.Services(info); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
