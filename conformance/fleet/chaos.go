// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
)

// Chaos checks that no call fails while the registry is killed, hangs, loses its data, is slow, or
// cut off; that a client starts meanwhile from its snapshot; and that all servers are registered
// again within one lease afterwards.
func Chaos(t *testing.T, r Registry) {
	t.Helper()
	t.Attr("rerun", "never")
	away, s := 2*time.Second, r.Server
	if *long {
		away = time.Minute
	}
	p := realserver.Between(t, s.Addr)
	open := func(t *testing.T) Client { return r.Open(t, p.Addr, registry.Options{}) }
	var addrs []string
	for range 3 {
		addrs = append(addrs, start(t, open(t)).addr)
	}
	if err := found(open(t).Service(service), 10*time.Second, all(addrs...)); err != nil {
		t.Fatal(err)
	}
	snapshot := filepath.Join(t.TempDir(), "instances.json")
	u := use(newClient(t, registry.Snapshot(snapshot, open(t).Service(service))), 8, 2)
	defer u.stop()
	kept(t, snapshot, addrs)
	u.check(t, "before")
	for _, trouble := range []struct {
		name       string
		begin, end func()
	}{
		{"killed", s.Kill, s.Restart},
		{"hanging", s.Stop, s.Continue},
		{"slow", func() { p.Slow(300 * time.Millisecond) }, func() { p.Slow(0) }},
		{"cut off", p.Cut, p.Heal},
		{"restarted empty", s.Kill, s.RestartEmpty},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			trouble.begin()
			began := time.Now()
			if err := call(newClient(t, registry.Snapshot(snapshot, open(t).Service(service))), 1); err != nil {
				t.Errorf("a client that starts meanwhile: %v", err)
			}
			t.Logf("a new client had its first reply after %v", time.Since(began).Round(time.Millisecond))
			<-time.After(away)
			trouble.end()
			began = time.Now()
			if err := found(open(t).Service(service), lease, all(addrs...)); err != nil {
				t.Error(err)
			}
			t.Logf("all servers were registered %v after it was over", time.Since(began).Round(time.Millisecond))
			u.check(t, trouble.name)
		})
	}
}

// kept waits until a snapshot has all addresses.
func kept(t *testing.T, path string, addrs []string) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); ; {
		text, err := os.ReadFile(path) //nolint:gosec // the test chose it
		missing := err != nil
		for _, addr := range addrs {
			missing = missing || !bytes.Contains(text, []byte(addr))
		}
		if !missing {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("the snapshot is %s (%v), want %v", text, err, addrs)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// Roll checks that no call fails and no stream breaks while all servers of a fleet are replaced,
// one after the other.
func Roll(t *testing.T, r Registry) {
	t.Helper()
	t.Attr("rerun", "never")
	rounds, callers, streams := 2, 30, 6
	if *long {
		rounds, callers, streams = 20, 100, 20
	}
	announced, watched := r.Open(t, r.Server.Addr, registry.Options{}), r.Open(t, r.Server.Addr, registry.Options{})
	servers := make([]instance, 3)
	addrs := make([]string, len(servers))
	for i := range servers {
		servers[i] = start(t, announced)
		addrs[i] = servers[i].addr
	}
	if err := found(watched.Service(service), 10*time.Second, all(addrs...)); err != nil {
		t.Fatal(err)
	}
	u := use(newClient(t, watched.Service(service)), callers, streams)
	for range rounds {
		for i, old := range servers {
			if err := old.stop(); err != nil {
				t.Errorf("a server does not end well: %v", err)
			}
			servers[i] = start(t, announced)
			addrs[i] = servers[i].addr
			if err := found(watched.Service(service), 10*time.Second, all(addrs...)); err != nil {
				t.Error(err)
			}
		}
	}
	u.stop()
	u.check(t, "restarts")
}
