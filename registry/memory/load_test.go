// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// Servers say in the registry how busy they are, so that a client knows where to send its first
// call, of which there has been no reply.
func TestANewClientBeginsWithTheLeastLoaded(t *testing.T) {
	r := memory.New(nil)
	release := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan struct{}, 3)
	var addrs []string
	for range cap(served) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		addr := l.Addr().String()
		s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}, AnnounceEvery: 50 * time.Millisecond})
		must(t, s.Handle("Work.Long", func() { <-release }))
		must(t, s.Handle("Work.Where", func() string { return addr }))
		go func() { _ = s.Serve(ctx, l); served <- struct{}{} }()
		addrs = append(addrs, addr)
	}
	var busy []*yodel.Client
	defer func() { // the calls end, then the servers
		close(release)
		for _, c := range busy {
			c.Close()
		}
		stop()
		for range cap(served) {
			<-served
		}
	}()
	for _, addr := range addrs[:2] {
		c := yodel.Dial(addr)
		busy = append(busy, c)
		for range 20 {
			c.Go(t.Context(), &yodel.Call{Method: "Work.Long", Args: yodel.Values{}, Reply: yodel.Values{}}, func(error) {})
		}
	}
	known, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	must(t, r.Service("Work").Watch(known, func(all []discovery.Instance) {
		loads := make(map[string]int)
		for _, in := range all {
			loads[in.Addr] = in.Inflight
		}
		if len(all) == 3 && loads[addrs[0]] == 20 && loads[addrs[1]] == 20 && loads[addrs[2]] == 0 {
			cancel()
		}
	}))
	if context.Cause(known) == context.DeadlineExceeded {
		t.Fatal("the registry does not say how busy the servers are")
	}
	for range 30 {
		c := yodel.NewClient(r.Service("Work"), &yodel.ClientOptions{Balancer: balance.LeastLoaded})
		var where string
		must(t, c.Call(t.Context(), "Work.Where", yodel.Values{}, yodel.Values{&where}))
		c.Close()
		if where != addrs[2] {
			t.Fatalf("the first call went to %s, want %s, which has nothing to do", where, addrs[2])
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
