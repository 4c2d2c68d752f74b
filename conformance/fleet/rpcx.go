// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
)

// RPCX checks that yodel finds a server that rpcx has registered, and rpcx one that yodel has
// announced: a fleet may be mixed. Kind is what the registry is: "etcd", "zookeeper" or "redis".
func RPCX(t *testing.T, r Registry, kind string) {
	t.Helper()
	const base = "/rpcx_test"
	c := r.Open(t, r.Server.Addr, registry.Options{Prefix: base, Layout: registry.RPCX})
	t.Run("theirs", func(t *testing.T) {
		s := realserver.RPCX(t, kind, r.Server.Addr, base, "group=red&group=blue&weight=7&state=inactive&latitude=47.5&longitude=8.5&owner=anna")
		want := discovery.Instance{
			Addr: s.Addr, Protocols: []string{"rpcx"}, Group: "red,blue", Weight: 7, State: "inactive", Latitude: 47.5, Longitude: 8.5,
			Metadata: yodel.Metadata{"owner": "anna"},
		}
		look := func(when string, wanted func([]discovery.Instance) bool) {
			if err := found(c.Service("Arith"), 20*time.Second, wanted); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
		}
		one := func(got []discovery.Instance) bool { return len(got) == 1 && reflect.DeepEqual(got[0], want) }
		look("registered", one)
		<-time.After(3 * time.Second) // it has registered again meanwhile
		look("registered again", one)
	})
	t.Run("ours", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		in := discovery.Instance{Addr: "127.0.0.1:8972", Group: "red", Weight: 7, State: "inactive", Tags: []string{"new"}}
		if err := c.Announce(ctx, "Shop", in, time.Minute); err != nil {
			t.Fatal(err)
		}
		got, err := realserver.FoundByRPCX(ctx, kind, r.Server.Addr, base, "Shop")
		if want := "tcp@127.0.0.1:8972 group=red&protocol=yodel&state=inactive&tag=new&weight=7\n"; err != nil || got != want {
			t.Errorf("rpcx finds %q, %v, want %q", got, err, want)
		}
	})
}
