// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
)

// TestServices lists the services of a real server. The slices of other programs and of other
// prefixes are not listed, nor are the folders of operators' settings.
func TestServices(t *testing.T) {
	s := realserver.Kubernetes(t)
	o := options(t, s, s.Addr)
	r := open(t, o)
	other := *o
	other.Prefix = "elsewhere"
	admin := newAdmin(t, o)
	admin.apply(slice{Metadata: metadata{Name: "web-1", Labels: map[string]string{"kubernetes.io/service-name": "web"}}, AddressType: "IPv4"})
	for i := range 3 {
		must(t, r.Announce(t.Context(), "list.Cart", yodel.Instance{Addr: fmt.Sprintf("10.0.0.1:%d", 1+i)}, time.Minute))
	}
	must(t, r.Announce(t.Context(), "list/Pay home", yodel.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	must(t, open(t, &other).Announce(t.Context(), "list.Stock", yodel.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	must(t, registry.Override(t.Context(), r, "list.Cart", "10.0.0.1:1", "inactive", 0))
	names, err := r.Services(t.Context())
	must(t, err)
	if want := []string{"list.Cart", "list/Pay home"}; !slices.Equal(names, want) {
		t.Errorf("got the services %q, want %q", names, want)
	}
}
