// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"context"
	"iter"
	"net"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/redis"
)

// fill writes records as the registry does, many at once.
func fill(t *testing.T, client *goredis.Client, records iter.Seq[governed.Record]) {
	t.Helper()
	send, queued := client.Pipeline(), 0
	flush := func() {
		_, err := send.Exec(t.Context())
		must(t, err)
		queued = 0
	}
	for r := range records {
		send.Set(t.Context(), r.Key, r.Value, 0)
		if i := strings.LastIndexByte(r.Key, '/'); i > 0 {
			send.ZAdd(t.Context(), r.Key[:i], goredis.Z{Score: 1e15, Member: r.Key})
		}
		if queued++; queued == 5000 {
			flush()
		}
	}
	flush()
}

// The keys of other programs, and of the history of rules, are many more than those of services.
func TestListsAreComplete(t *testing.T) {
	s := realserver.Redis(t)
	client := direct(t, s)
	must(t, client.ConfigSet(t.Context(), "maxclients", "15000").Err()) // each service has a connection
	fill(t, client, governed.Foreign())
	fill(t, client, governed.Records(t))
	governed.Lists(t, newRegistry(t, s.Addr, &redis.Options{Timeout: time.Minute}))
}

// A list that is cut off by its time says so.
func TestAListThatIsNotCompleteSaysSo(t *testing.T) {
	s := realserver.Redis(t)
	fill(t, direct(t, s), governed.Foreign())
	p := realserver.Between(t, s.Addr)
	for _, layout := range []registry.Layout{registry.JSON, registry.RPCX} {
		r := newRegistry(t, p.Addr, &redis.Options{Options: registry.Options{Layout: layout}, Timeout: time.Second})
		must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "127.0.0.1:1"}, time.Minute))
		p.Slow(200 * time.Millisecond)
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		if names, err := r.Services(limited); err == nil { // of the context, or of the library's read
			t.Errorf("%d services of a slow Redis, and no error", len(names))
		}
		cancel()
		p.Slow(0)
		names, err := r.Services(t.Context())
		if err != nil || len(names) != 1 {
			t.Errorf("%q of a fast Redis, %v", names, err)
		}
	}
}

// A replica is read, and takes no writes. The check changes nothing.
func TestAReplicaIsNotWritable(t *testing.T) {
	main, replica := realserver.Redis(t), realserver.Redis(t)
	r := newRegistry(t, replica.Addr, nil)
	must(t, r.Writable(t.Context()))
	host, port, err := net.SplitHostPort(main.Addr)
	must(t, err)
	must(t, direct(t, replica).ReplicaOf(t.Context(), host, port).Err())
	if err := r.Writable(t.Context()); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("of a replica: %v", err)
	}
	client := direct(t, main)
	must(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	if err := newRegistry(t, main.Addr, nil).Writable(t.Context()); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("of a server without memory: %v", err)
	}
	if n, err := client.DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("the check has left %d keys, %v", n, err)
	}
}
