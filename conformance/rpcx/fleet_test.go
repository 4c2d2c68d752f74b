// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/smallnest/rpcx/client"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/file"
)

// Servers of rpcx and of yodel are found in one registry, by clients of both, and each client calls
// each of them.
func TestMixedFleet(t *testing.T) {
	t.Attr("rerun", "never")
	folder := t.TempDir()
	r := file.New(folder, &registry.Options{Prefix: "rpcx_test", Layout: registry.RPCX})
	records := filepath.Join(folder, "rpcx_test", "Arith")
	if err := os.MkdirAll(records, 0o755); err != nil {
		t.Fatal(err)
	}
	theirs := serveRPCX(t, "tcp", "127.0.0.1:0", nil)
	// The record that rpcx's plugins write for this server.
	record := filepath.Join(records, "tcp@"+theirs.addr)
	if err := os.WriteFile(record, []byte("group=&calls=0.00"), 0o644); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour) // of the file registry: when the record expires
	if err := os.Chtimes(record, later, later); err != nil {
		t.Fatal(err)
	}
	ours := serveYodel(t, "127.0.0.1:0", yodel.ServerOptions{Registrars: []discovery.Registrar{r}})

	// Yodel's client finds both.
	protocols := make(map[string]string)
	ctx, found := context.WithCancel(within(t))
	if err := r.Service("Arith").Watch(ctx, func(all []discovery.Instance) {
		clear(protocols)
		for _, in := range all {
			protocols[in.Addr] = strings.Join(in.Protocols, " ")
		}
		if len(all) == 2 {
			found()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{theirs.addr: "rpcx", ours.addr: "yodel rpcx http"}; !maps.Equal(protocols, want) {
		t.Fatalf("got %q, want %q", protocols, want)
	}
	c := yodel.NewClient(r.Service("Arith"), &yodel.ClientOptions{
		Codec: msgpack.Codec, Wires: []yodel.Wire{rpcx.Wire(nil)}, Balancer: yodel.RoundRobin,
	})
	defer c.Close()
	if err := c.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	calls := 0
	for ; calls < 40 || calls < 1000 && (len(theirs.noted) == 0 || len(ours.noted) == 0); calls++ { // the client connects to the second one meanwhile
		if err := c.Call(within(t), "Arith.Note", &Args{A: calls}, &Reply{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(theirs.noted) == 0 || len(ours.noted) == 0 || len(theirs.noted)+len(ours.noted) != calls {
		t.Errorf("yodel's client made %d calls to rpcx and %d to yodel, want %d to both", len(theirs.noted), len(ours.noted), calls)
	}
	for _, s := range []*Arith{theirs.Arith, ours.Arith} {
		for len(s.noted) > 0 {
			await.Value(t, s.noted, "a one-way call")
		}
	}

	// Rpcx's client finds both.
	var pairs []*client.KVPair
	files, err := os.ReadDir(records)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		value, err := os.ReadFile(filepath.Join(records, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, &client.KVPair{Key: f.Name(), Value: string(value)})
	}
	d, err := client.NewMultipleServersDiscovery(pairs)
	if err != nil {
		t.Fatal(err)
	}
	x := client.NewXClient("Arith", client.Failtry, client.RoundRobin, d, option("msgpack"))
	defer x.Close()
	for i := range 40 {
		if err := x.Call(within(t), "Note", &Args{A: i}, &Reply{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(theirs.noted) != 20 || len(ours.noted) != 20 {
		t.Errorf("rpcx's client made %d calls to rpcx and %d to yodel, want 20 to each", len(theirs.noted), len(ours.noted))
	}
}
