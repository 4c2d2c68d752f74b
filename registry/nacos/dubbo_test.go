// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/nacos"
)

func openDubbo(t *testing.T, addr, application string, o nacos.Options) *nacos.Dubbo {
	t.Helper()
	o.Every = 100 * time.Millisecond
	r := nacos.NewDubbo(addr, application, &o)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// testDubbo has instances come, change and go, in the records of interfaces and of applications.
func testDubbo(t *testing.T, addr string, o nacos.Options) {
	first, second, client := openDubbo(t, addr, "first", o), openDubbo(t, addr, "second", o), openDubbo(t, addr, "client", o)
	name := map[bool]string{false: "a.B$C", true: "v1.B"}[o.V1]
	in := discovery.Instance{Addr: "10.0.0.1:20880", Protocols: []string{"yodel", "dubbo"}, Version: "1.0.0"}
	other := discovery.Instance{Addr: "10.0.0.2:20880", Protocols: []string{"dubbo", "http"}, Version: "2.0.0", Group: "red"}
	want(t, client.Service(name))
	must(t, first.Announce(t.Context(), name, in, time.Minute))
	want(t, client.Service(name), in)
	must(t, second.Announce(t.Context(), name, other, time.Minute))
	want(t, client.Service(name), in, other)
	want(t, client.Service(name+":1.0.0"), in)
	want(t, client.Service("red/"+name+":2.0.0"), other)
	want(t, client.Service("red/"+name+":1.0.0"))
	for range 2 { // changed, and kept alive
		in.Weight = 3
		must(t, first.Announce(t.Context(), name, in, time.Minute))
		must(t, first.Announce(t.Context(), name+"C", in, time.Minute))
		want(t, client.Service(name), in, other)
	}
	group := o.Group
	if group == "" {
		group = "DEFAULT_GROUP"
	}
	record := func(service string) []map[string]any {
		return listed(t, addr, url.Values{"groupName": {group}, "serviceName": {strings.ReplaceAll(service, "$", "___")}})
	}
	if got := record("providers:" + name + ":2.0.0:red"); len(got) != 1 || got[0]["metadata"].(map[string]any)["protocol"] != "dubbo" {
		t.Errorf("the records of the interface are %v", got)
	}
	if got := record("second"); len(got) != 1 || got[0]["metadata"].(map[string]any)["dubbo.metadata.revision"] == "" {
		t.Errorf("the records of the application are %v", got)
	}
	must(t, second.Withdraw(t.Context(), name, other.Addr))
	want(t, client.Service(name), in)
	must(t, second.Withdraw(t.Context(), name, other.Addr))
	in.Version = "3.0.0" // its record has another name, and replaces the earlier one
	must(t, first.Announce(t.Context(), name, in, time.Minute))
	want(t, client.Service(name), in)
	want(t, client.Service(name+":1.0.0"))
	must(t, first.Withdraw(t.Context(), name+"C", in.Addr))
	want(t, client.Service(name), in)
	must(t, first.Withdraw(t.Context(), name, in.Addr))
	want(t, client.Service(name))
	want(t, client.Service(name+"C"))
	must(t, first.Announce(t.Context(), name, in, time.Second))
	want(t, client.Service(name), in)
	want(t, client.Service(name)) // it was not announced again
}

func TestDubboErrors(t *testing.T) {
	r := openDubbo(t, realserver.FreeAddr(t), "x", nacos.Options{})
	if err := r.Announce(t.Context(), "a.B", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute); err == nil || !strings.Contains(err.Error(), "no protocol of Dubbo") {
		t.Errorf("got %v", err)
	}
	if err := r.Announce(t.Context(), "a.B", discovery.Instance{Addr: "10.0.0.1:1", Protocols: []string{"dubbo"}}, time.Minute); err == nil {
		t.Error("it announces without a server")
	}
	must(t, r.Withdraw(t.Context(), "a.C", "10.0.0.1:1"))
	if text := r.String(); !strings.HasPrefix(text, "Dubbo in Nacos at 127.0.0.1:") {
		t.Errorf("got %q", text)
	}
	if err := r.Service("a.B").Watch(t.Context(), func([]discovery.Instance) {}); err == nil || !strings.Contains(err.Error(), "nacos") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Service("a.B").Watch(ctx, func([]discovery.Instance) {}); err != nil {
		t.Errorf("got %v", err)
	}
}
