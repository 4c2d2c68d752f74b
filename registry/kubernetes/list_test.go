// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
)

// A list whose second page has expired says that it is not complete.
func TestAListThatIsNotCompleteSaysSo(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.FormValue("continue") != "" {
			w.WriteHeader(http.StatusGone)
			_, _ = w.Write([]byte(`{"code":410,"message":"The provided continue parameter is too old"}`))
			return
		}
		_, _ = w.Write([]byte(`{"metadata":{"continue":"2"},"items":[{"metadata":{"annotations":{"` + annotationKey + `":"yodel/Cart/10.0.0.1:1"}}}]}`))
	}))
	defer server.Close()
	names, err := open(t, &Options{Server: server.URL}).Services(t.Context())
	if err == nil || !strings.Contains(err.Error(), "too old") || !slices.Equal(names, []string{"Cart"}) {
		t.Errorf("got the services %q, %v", names, err)
	}
}

// holds is how many services make before-end announces here. The API server reads all slices of the
// namespace for each service that the test follows. With 5,000, that takes 2 minutes instead of
// 6 s, and longer than the test waits with 10,000, although they are listed in 0.7 s.
const holds = 2000

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
		must(t, r.Announce(t.Context(), "list.Cart", discovery.Instance{Addr: fmt.Sprintf("10.0.0.1:%d", 1+i)}, time.Minute))
	}
	must(t, r.Announce(t.Context(), "list/Pay home", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	must(t, open(t, &other).Announce(t.Context(), "list.Stock", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	must(t, registry.Override(t.Context(), r, "list.Cart", "10.0.0.1:1", "inactive", 0))
	names, err := r.Services(t.Context())
	must(t, err)
	if want := []string{"list.Cart", "list/Pay home"}; !slices.Equal(names, want) {
		t.Errorf("got the services %q, want %q", names, want)
	}
	t.Run("complete", func(t *testing.T) {
		o := *options(t, s, s.Addr)
		o.Namespace = "default"
		o.Prefix = "complete"
		governed.Announced(t, open(t, &o), holds, nil)
	})
}
