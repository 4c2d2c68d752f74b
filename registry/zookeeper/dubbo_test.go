// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/zookeeper"
)

// follow passes the sets of a service's instances on until the test ends.
func follow(t *testing.T, r *zookeeper.Dubbo, service string) <-chan []discovery.Instance {
	t.Helper()
	sets := make(chan []discovery.Instance, 100)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Service(service).Watch(ctx, func(all []discovery.Instance) { sets <- all }) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})
	return sets
}

// until waits for a set.
func until(t *testing.T, sets <-chan []discovery.Instance, want ...discovery.Instance) {
	t.Helper()
	var got []discovery.Instance
	deadline := time.After(30 * time.Second)
	for {
		select {
		case got = <-sets:
			if len(got) == len(want) && (len(got) == 0 || reflect.DeepEqual(got, want)) {
				return
			}
		case <-deadline:
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
}

func openDubbo(t *testing.T, addr, application string) *zookeeper.Dubbo {
	t.Helper()
	r := zookeeper.NewDubbo(addr, application, &zookeeper.Options{Session: session})
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// Instances come, change and go, in the records of interfaces and of applications.
func TestDubbo(t *testing.T) {
	t.Parallel()
	s := realserver.ZooKeeper(t)
	first, second, client := openDubbo(t, s.Addr, "first"), openDubbo(t, s.Addr, "second"), openDubbo(t, s.Addr, "client")
	in := discovery.Instance{Addr: "10.0.0.1:20880", Protocols: []string{"yodel", "dubbo"}, Version: "1.0.0"}
	other := discovery.Instance{Addr: "10.0.0.2:20880", Protocols: []string{"dubbo"}, Version: "2.0.0", Group: "red"}
	all, versioned := follow(t, client, "a.B"), follow(t, client, "a.B:1.0.0")
	until(t, all)
	must(t, first.Announce(t.Context(), "a.B", in, time.Minute))
	until(t, all, in)
	must(t, second.Announce(t.Context(), "a.B", other, time.Minute))
	until(t, all, in, other)
	until(t, versioned, in)
	in.Weight = 3
	must(t, first.Announce(t.Context(), "a.B", in, time.Minute))
	must(t, first.Announce(t.Context(), "a.C", in, time.Minute))
	until(t, all, in, other)
	must(t, second.Withdraw(t.Context(), "a.B", other.Addr))
	until(t, all, in)
	must(t, second.Withdraw(t.Context(), "a.B", other.Addr))

	conn, _, err := zk.Connect([]string{s.Addr}, session, zk.WithLogInfo(false))
	must(t, err)
	defer conn.Close()
	children := func(node string) []string {
		names, _, err := conn.Children(node)
		must(t, err)
		return names
	}
	if names := children("/dubbo/a.B/providers"); len(names) != 1 || !strings.HasPrefix(names[0], "dubbo%3A%2F%2F10.0.0.1%3A20880%2Fa.B%3F") {
		t.Errorf("got the providers %q", names)
	}
	if names := children("/services/first"); !reflect.DeepEqual(names, []string{in.Addr}) {
		t.Errorf("got the instances %q", names)
	}
	if mapping, _, err := conn.Get("/dubbo/mapping/a.B"); err != nil || string(mapping) != "first,second" {
		t.Errorf("got the mapping %q, %v", mapping, err)
	}
	// Without the record of the interface, that of the application is enough.
	must(t, conn.Delete("/dubbo/a.B/providers/"+children("/dubbo/a.B/providers")[0], -1))
	until(t, follow(t, client, "a.B"), in)
	must(t, first.Withdraw(t.Context(), "a.C", in.Addr))
	must(t, first.Withdraw(t.Context(), "a.B", in.Addr))
	until(t, all)
	if names := children("/services/first"); len(names) != 0 {
		t.Errorf("got the instances %q", names)
	}
}

// The records of a process end with its session, and those that are not announced again with their
// time to live.
func TestDubboRecordsEnd(t *testing.T) {
	t.Parallel()
	s := realserver.ZooKeeper(t)
	client, ends := openDubbo(t, s.Addr, "client"), zookeeper.NewDubbo(s.Addr, "first", &zookeeper.Options{Session: session})
	in := discovery.Instance{Addr: "10.0.0.1:20880", Protocols: []string{"dubbo"}}
	all := follow(t, client, "a.B")
	must(t, ends.Announce(t.Context(), "a.B", in, time.Minute))
	until(t, all, in)
	must(t, ends.Close())
	until(t, all)
	must(t, client.Announce(t.Context(), "a.B", in, time.Second))
	until(t, all, in)
	until(t, all)
}

func TestDubboErrors(t *testing.T) {
	t.Parallel()
	r := openDubbo(t, realserver.FreeAddr(t), "x")
	if err := r.Announce(t.Context(), "a.B", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute); err == nil || !strings.Contains(err.Error(), "no protocol of Dubbo") {
		t.Errorf("got %v", err)
	}
	if text := r.String(); !strings.HasPrefix(text, "Dubbo in ZooKeeper at 127.0.0.1:") {
		t.Errorf("got %q", text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Service("a.B").Watch(ctx, func([]discovery.Instance) {}); err != nil {
		t.Errorf("got %v", err)
	}
}
