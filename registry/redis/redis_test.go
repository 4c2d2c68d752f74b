// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/yodel-rpc/yodel/conformance/fleet"
	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/redis"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	governed.Child(opened)
	yodeltest.VerifyNoLeaks(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// direct returns a client of the server beside the registry's.
func direct(t *testing.T, s *realserver.Server) *goredis.Client {
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr})
	t.Cleanup(func() { client.Close() })
	return client
}

func newRegistry(t *testing.T, addr string, o *redis.Options) *redis.Registry {
	r := redis.New(addr, o)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func suite(t *testing.T, o redis.Options) {
	t.Parallel()
	s := realserver.Redis(t)
	p := realserver.Between(t, s.Addr)
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: newRegistry(t, p.Addr, &o), Another: newRegistry(t, p.Addr, &o),
		Service: func(name string) discovery.Resolver { return newRegistry(t, p.Addr, &o).Service(name) },
		Kill:    s.Kill, Restart: s.Restart, RestartEmpty: s.RestartEmpty, Stop: s.Stop, Continue: s.Continue, Slow: p.Slow,
		Expire: func() { must(t, direct(t, s).FlushAll(t.Context()).Err()) },
	})
}

func TestRegistry(t *testing.T) { suite(t, redis.Options{}) }

func TestRegistryInTheLayoutOfRPCX(t *testing.T) {
	suite(t, redis.Options{Options: registry.Options{Prefix: "/rpcx_test", Layout: registry.RPCX}})
}

// A partition differs from a server that is stopped: the server lives, and records expire.
func TestAPartition(t *testing.T) {
	s := realserver.Redis(t)
	p := realserver.Between(t, s.Addr)
	o := &redis.Options{Timeout: time.Second} // on a busy machine, an answer may take half of it
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: newRegistry(t, p.Addr, o),
		Service:   func(name string) discovery.Resolver { return newRegistry(t, p.Addr, o).Service(name) },
		Instances: 100, Stop: p.Cut, Continue: p.Heal,
	})
}

func TestRecordsAreForPeopleToRead(t *testing.T) {
	s := realserver.Redis(t)
	r, client := newRegistry(t, s.Addr, nil), direct(t, s)
	sub := client.Subscribe(t.Context(), "yodel/Shop")
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	must(t, err)
	began := time.Now()
	for weight := range 3 { // the first and the last one are the same as the one before
		must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:8972", Weight: max(weight, 1)}, time.Minute))
	}
	const key = "yodel/Shop/10.0.0.1:8972"
	value, err := client.Get(t.Context(), key).Result()
	must(t, err)
	if want := `{"addr":"10.0.0.1:8972","weight":2}`; value != want {
		t.Errorf("got %s, want %s", value, want)
	}
	members, err := client.ZRangeWithScores(t.Context(), "yodel/Shop", 0, -1).Result()
	must(t, err)
	end := float64(began.Add(time.Minute).UnixMilli())
	if len(members) != 1 || members[0].Member != key || members[0].Score < end-1000 || members[0].Score > end+10_000 {
		t.Errorf("the set of the service is %v, want %s and about %.0f", members, key, end)
	}
	must(t, r.Withdraw(t.Context(), "Shop", "10.0.0.1:8972"))
	must(t, r.Withdraw(t.Context(), "Shop", "10.0.0.1:8972"))
	must(t, client.Publish(t.Context(), "yodel/Shop", "end").Err())
	// new, changed, withdrawn; what changes nothing is not published
	for _, want := range []string{key, key, key, "end"} {
		got, err := sub.ReceiveMessage(t.Context())
		must(t, err)
		if got.Payload != want {
			t.Errorf("published: %s, want %s", got.Payload, want)
		}
	}
	if left, err := client.Keys(t.Context(), "*").Result(); err != nil || len(left) > 0 {
		t.Errorf("got %v, %v, want no keys when all is withdrawn", left, err)
	}
}

func TestSetsEndWithTheirRecords(t *testing.T) {
	s := realserver.Redis(t)
	r, client := newRegistry(t, s.Addr, nil), direct(t, s)
	announce := func(addr string, ttl time.Duration) {
		must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: addr}, ttl))
	}
	announce("a:1", time.Hour)
	announce("a:2", time.Millisecond)
	ends, err := client.PTTL(t.Context(), "yodel/Shop").Result()
	must(t, err)
	if ends < time.Hour || ends > time.Hour+time.Minute {
		t.Errorf("the set ends in %v, want a minute after its last record", ends)
	}
	must(t, client.ZAdd(t.Context(), "yodel/Shop", goredis.Z{Score: float64(time.Now().Add(-2 * time.Minute).UnixMilli()), Member: "yodel/Shop/a:3"}).Err())
	announce("a:1", time.Hour)
	members, err := client.ZRange(t.Context(), "yodel/Shop", 0, -1).Result()
	must(t, err)
	if fmt.Sprint(members) != "[yodel/Shop/a:2 yodel/Shop/a:1]" {
		t.Errorf("got %v, want what has not ended long ago", members)
	}
}

// follow calls seen with each update in a service until it returns true.
func follow(t *testing.T, r *redis.Registry, service string, seen func([]discovery.Instance) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var last []discovery.Instance
	err := r.Service(service).Watch(ctx, func(instances []discovery.Instance) {
		last = instances
		if seen(instances) {
			cancel()
		}
	})
	if err != nil || context.Cause(ctx) == context.DeadlineExceeded {
		t.Fatalf("got %v, %v", last, err)
	}
}

// What rpcx's plugin writes through its library: a key that begins with one more slash, and JSON
// around the value.
func TestRecordsOfRPCX(t *testing.T) {
	s := realserver.Redis(t)
	client := direct(t, s)
	for base, prefix := range map[string]string{"rpcx_test": "/rpcx_test", "/rpcx[1]*": "//rpcx[1]*"} {
		set := func(key, value string) { must(t, client.Set(t.Context(), key, value, time.Minute).Err()) }
		set(prefix, `{"Key":"`+base+`","Value":"cnBjeF9wYXRo","LastIndex":1}`)
		set(prefix+"/Arith", `{"Key":"`+base+`/Arith","Value":"QXJpdGg=","LastIndex":2}`)
		set(prefix+"/Arith/tcp@10.0.0.1:8972", `{"Key":"`+base+`/Arith/tcp@10.0.0.1:8972","Value":"d2VpZ2h0PTcmc3RhdGU9aW5hY3RpdmU=","LastIndex":3}`)
		set(prefix+"/Arith/tcp@10.0.0.2:8972", "weight=8") // by hand
		set(prefix+"/Arithmetic/tcp@10.0.0.3:8972", `{"Key":"`+base+`/Arithmetic/tcp@10.0.0.3:8972","Value":"","LastIndex":4}`)
		r := newRegistry(t, s.Addr, &redis.Options{Options: registry.Options{Prefix: base, Layout: registry.RPCX}, Every: 50 * time.Millisecond})
		want := "[10.0.0.1:8972 7 inactive][10.0.0.2:8972 8 ]"
		reach := func() {
			t.Helper()
			follow(t, r, "Arith", func(instances []discovery.Instance) bool {
				var got strings.Builder
				for _, in := range instances {
					fmt.Fprint(&got, []any{in.Addr, in.Weight, in.State})
				}
				return got.String() == want
			})
		}
		reach()
		must(t, r.Announce(t.Context(), "Arith", discovery.Instance{Addr: "10.0.0.4:8972", Weight: 9}, time.Minute))
		want += "[10.0.0.4:8972 9 ]"
		reach()
		text, err := client.Get(t.Context(), prefix+"/Arith/tcp@10.0.0.4:8972").Result()
		must(t, err)
		var pair struct {
			Key   string
			Value []byte
		}
		must(t, json.Unmarshal([]byte(text), &pair))
		if pair.Key != base+"/Arith/tcp@10.0.0.4:8972" || string(pair.Value) != "protocol=yodel&weight=9" {
			t.Errorf("rpcx would read %s", text)
		}
		if kind, err := client.Type(t.Context(), prefix+"/Arith").Result(); err != nil || kind != "string" {
			t.Errorf("the key of the service is a %s, %v, want what rpcx wrote", kind, err)
		}
	}
}

func TestFleetsWithRPCX(t *testing.T) {
	fleet.RPCX(t, fleet.Registry{Server: realserver.Redis(t), Open: func(t testing.TB, addr string, o registry.Options) fleet.Client {
		r := redis.New(addr, &redis.Options{Options: o})
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return r
	}}, "redis")
}

// A connection that was lost may have missed messages, and records that others wrote without a word
// are found by reading all again.
func TestWhatWasMissedIsFound(t *testing.T) {
	s := realserver.Redis(t)
	r := newRegistry(t, s.Addr, nil)
	client := direct(t, s)
	must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "a:1"}, time.Minute))
	var once sync.Once
	follow(t, r, "Shop", func(instances []discovery.Instance) bool {
		once.Do(func() {
			end := float64(time.Now().Add(time.Minute).UnixMilli())
			must(t, client.Set(t.Context(), "yodel/Shop/a:2", `{"addr":"a:2"}`, time.Minute).Err())
			must(t, client.ZAdd(t.Context(), "yodel/Shop", goredis.Z{Score: end, Member: "yodel/Shop/a:2"}).Err())
			must(t, client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
		})
		return len(instances) == 2
	})
}

// A client that closes does not wait for a Redis that accepts connections and says nothing.
func TestAWatchEndsWithoutAnAnswer(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	r := redis.New(l.Addr().String(), &redis.Options{Timeout: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Service("Shop").Watch(ctx, func([]discovery.Instance) {}) }()
	conn, err := l.Accept()
	must(t, err)
	_, err = conn.Read(make([]byte, 1)) // it asks, and waits
	must(t, err)
	cancel()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("it waits for an answer")
	}
	must(t, conn.Close())
	must(t, r.Close())
}

func TestPasswordAndDatabase(t *testing.T) {
	s := realserver.Redis(t)
	client := direct(t, s)
	must(t, client.Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all").Err())
	must(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">other").Err())
	in := discovery.Instance{Addr: "a:1"}
	for password, right := range map[string]bool{"secret": true, "wrong": false} {
		r := newRegistry(t, s.Addr, &redis.Options{Username: "shop", Password: password, DB: 3})
		if err := r.Announce(t.Context(), "Shop", in, time.Minute); (err == nil) != right {
			t.Errorf("with the password %s: %v", password, err)
		}
		if right {
			follow(t, r, "Shop", func(instances []discovery.Instance) bool { return len(instances) == 1 })
		} else if err := r.Service("Shop").Watch(t.Context(), func([]discovery.Instance) {}); err == nil {
			t.Error("want an error")
		}
	}
	if size, err := client.DBSize(t.Context()).Result(); err != nil || size != 0 {
		t.Errorf("%d keys, %v in another database", size, err)
	}
}

func TestTLS(t *testing.T) {
	p, secure := realserver.Secured(t, realserver.Redis(t).Addr)
	r := newRegistry(t, p.Addr, &redis.Options{TLS: secure})
	must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "a:1"}, time.Minute))
	follow(t, r, "Shop", func(instances []discovery.Instance) bool { return len(instances) == 1 })
	plain := newRegistry(t, p.Addr, &redis.Options{Timeout: time.Second})
	if plain.Announce(t.Context(), "Shop", discovery.Instance{Addr: "a:2"}, time.Minute) == nil {
		t.Error("it is announced without TLS")
	}
}

func TestAClientOfOnesOwn(t *testing.T) {
	s := realserver.Redis(t)
	client := direct(t, s)
	r := redis.New("", &redis.Options{Client: client})
	must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "a:1"}, time.Minute))
	must(t, r.Close())
	must(t, client.Get(t.Context(), "yodel/Shop/a:1").Err())
}
