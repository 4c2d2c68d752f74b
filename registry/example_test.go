// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/dns"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// A server announces itself, and a client finds it. Every registry is used so.
func Example() {
	// region use
	r := memory.New(nil) // or etcd.New("10.0.0.1:2379", nil), consul.New("127.0.0.1:8500", nil) ...

	server := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{r},
		Instance:   discovery.Instance{Zone: "eu-1", Version: "v2", Weight: 2, Tags: []string{"canary"}},
	})
	client := yodel.NewClient(r.Service("Arith"), nil)
	// endregion use

	if err := server.Handle("Arith.Double", func(n int) int { return 2 * n }); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()

	found, done := context.WithCancel(ctx) // the server begins just now
	if err := r.Service("Arith").Watch(found, func(all []discovery.Instance) {
		if len(all) > 0 {
			done()
		}
	}); err != nil {
		log.Fatal(err)
	}
	for client.Ready(ctx) != nil {
		runtime.Gosched()
	}
	var n int
	if err := client.Call(ctx, "Arith.Double", yodel.Values{21}, yodel.Values{&n}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(n)
	client.Close()
	stop()
	<-served
	// Output: 42
}

// What a client follows may be made of several registries, and may be kept in a file for the day on
// which none answers.
func ExampleSnapshot() {
	folder, err := os.MkdirTemp("", "yodel-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	here, there := memory.New(nil), file.New(folder, nil)
	cache := filepath.Join(folder, "arith.json")

	// region several
	c := yodel.NewClient(registry.Snapshot(cache,
		registry.Prefer( // the first that has any active instances
			registry.Merge(here.Service("Arith"), dns.Service("_arith._tcp.example", nil)), // all of both
			there.Service("Arith"),
		)), nil)
	// endregion several

	c.Close()
	fmt.Println("closed")
	// Output: closed
}
