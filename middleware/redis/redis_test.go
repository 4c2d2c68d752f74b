// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/keys"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/once/oncetest"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/rate/ratetest"
	"github.com/yodel-rpc/yodel/middleware/redis"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// As a child of its own, the test program is a server that can be killed.
func TestMain(m *testing.M) {
	if addr := os.Getenv("YODEL_TEST_SERVER"); addr != "" {
		if err := serve(addr, os.Getenv("YODEL_TEST_REDIS")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	yodeltest.VerifyNoLeaks(m)
}

const work yodel.Method[string, string] = "Test.Work"

// serve runs a server that counts in Redis how often it executes what.
func serve(addr, redisAddr string) error {
	store := redis.New(redisAddr, nil)
	defer store.Close()
	counts := goredis.NewClient(&goredis.Options{Addr: redisAddr})
	defer counts.Close()
	s := yodel.NewServer(&yodel.ServerOptions{Keys: once.With(&once.Options{Store: store, Lease: 300 * time.Millisecond})})
	work.Handle(s, func(ctx context.Context, in *string) (*string, error) {
		n, err := counts.Incr(ctx, "executed:"+*in).Result()
		if err != nil {
			return nil, err
		}
		<-time.After(5 * time.Millisecond) // it may die here
		out := fmt.Sprint(*in, " ", n)
		return &out, nil
	})
	return s.ListenAndServe(context.Background(), addr)
}

func start(t *testing.T, redisAddr string) *realserver.Server {
	t.Helper()
	return realserver.Start(t, realserver.Program{
		Name: "the test server",
		Find: os.Executable,
		Command: func(found, addr, _ string) (*exec.Cmd, error) {
			cmd := exec.Command(found)
			cmd.Env = append(os.Environ(), "YODEL_TEST_SERVER="+addr, "YODEL_TEST_REDIS="+redisAddr)
			return cmd, nil
		},
		Probe: func(ctx context.Context, addr string) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func direct(t *testing.T, addr string) *goredis.Client {
	t.Helper()
	client := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return client
}

func open(t *testing.T, addr string, o *redis.Options) *redis.Store {
	t.Helper()
	s := redis.New(addr, o)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func TestRateStore(t *testing.T) {
	s := realserver.Redis(t)
	ratetest.Test(t, func(t *testing.T) rate.Store { return open(t, s.Addr, nil) })
	expire(t, s)
}

func TestOnceStore(t *testing.T) {
	s := realserver.Redis(t)
	oncetest.Test(t, true, func(t *testing.T) once.Store { return open(t, s.Addr, nil) })
	expire(t, s)
}

// expire fails the test if a key stays for ever and is not that of a memory.
func expire(t *testing.T, s *realserver.Server) {
	t.Helper()
	client := direct(t, s.Addr)
	keys, err := client.Keys(t.Context(), "*").Result()
	must(t, err)
	for _, key := range keys {
		if strings.HasPrefix(key, "yodel:memory:") {
			continue
		}
		if ttl, err := client.PTTL(t.Context(), key).Result(); err != nil || ttl == -1 { // -2 is gone
			t.Errorf("%q does not expire: %v, %v", key, ttl, err)
		}
		if !strings.HasPrefix(key, "yodel:") || len(key) > 300 {
			t.Errorf("the key is %q", key)
		}
	}
}

// A client that asks again by itself, because it has got no answer, claims the key for the same
// owner.
func TestTheOwnerMayClaimAgain(t *testing.T) {
	s := open(t, realserver.Redis(t).Addr, nil)
	for range 2 {
		found, _, _, err := s.Claim(t.Context(), "k", "a", []byte("claim"), time.Minute, time.Minute)
		if found != nil || err != nil {
			t.Errorf("got %q, %v", found, err)
		}
	}
	must(t, s.Put(t.Context(), "k", "a", []byte("outcome"), time.Minute))
	if found, alive, _, err := s.Claim(t.Context(), "k", "a", []byte("claim"), time.Minute, time.Minute); string(found) != "outcome" || !alive || err != nil {
		t.Errorf("got %q, %v, %v", found, alive, err)
	}
}

// A method may take longer than its key is kept for: nobody else may get the key meanwhile, nor may
// its outcome be lost.
func TestAKeyStaysWhileItsOwnerLives(t *testing.T) {
	server := realserver.Redis(t)
	s, client := open(t, server.Addr, nil), direct(t, server.Addr)
	const key, keep, left = "yodel:once:{13}:k", time.Minute, 10 * time.Second
	if _, _, _, err := s.Claim(t.Context(), "k", "a", []byte("claim"), time.Second, keep); err != nil {
		t.Fatal(err)
	}
	must(t, client.PExpire(t.Context(), key, left).Err()) // as if most of the time had passed
	must(t, s.Renew(t.Context(), "k", "b", time.Second))  // who does not own it
	if ttl := client.PTTL(t.Context(), key).Val(); ttl > left {
		t.Errorf("somebody else made it stay for %v", ttl)
	}
	must(t, s.Renew(t.Context(), "k", "a", time.Second))
	if ttl := client.PTTL(t.Context(), key).Val(); ttl <= left {
		t.Errorf("it is renewed, and stays for %v, want about %v", ttl, keep)
	}
}

func TestRedisWithoutRoom(t *testing.T) {
	server := realserver.Redis(t)
	client := direct(t, server.Addr)
	must(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	s := open(t, server.Addr, nil)
	_, _, _, err := s.Claim(t.Context(), "k", "a", []byte("claim"), time.Minute, time.Minute) //nolint:dogsled // they are of a claim
	if !errors.Is(err, yodel.ResourceExhausted) {
		t.Errorf("got %v, want resource_exhausted", err)
	}
}

func TestWithoutRedis(t *testing.T) {
	server := realserver.Redis(t)
	s := open(t, server.Addr, nil)
	pass := func(context.Context, *yodel.Call) error { return nil }
	quiet := slog.New(slog.DiscardHandler)
	loose := rate.With(&rate.Limit{PerSecond: 0.01, Burst: 10, Batch: 1, Store: s, Logger: quiet})(pass)
	strict := rate.With(&rate.Limit{PerSecond: 0.01, Burst: 10, Batch: 1, Store: s, Logger: quiet, Strict: true, Name: "strict"})(pass)
	for range 5 {
		must(t, loose(t.Context(), &yodel.Call{}))
		must(t, strict(t.Context(), &yodel.Call{}))
	}
	server.Stop() // it hangs
	began := time.Now()
	for i := range 12 {
		if err := loose(t.Context(), &yodel.Call{}); (err == nil) != (i < 10) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if err := strict(t.Context(), &yodel.Call{}); !errors.Is(err, yodel.Unavailable) || !yodel.NotProcessed(err) {
		t.Errorf("strict: %v", err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("14 calls without Redis took %v", took)
	}
	server.Continue()
	server.Kill()
	if _, _, _, err := s.Claim(t.Context(), "k", "a", nil, time.Minute, time.Minute); err == nil {
		t.Error("claimed without Redis")
	}
	server.Restart()
	if _, _, _, err := s.Claim(t.Context(), "k", "a", []byte("x"), time.Minute, time.Minute); err != nil {
		t.Error(err)
	}
}

// Several servers with one Redis, of which some are killed: no call is executed twice, and the
// caller learns the outcome, or that it is not known.
func TestServersAreKilled(t *testing.T) {
	t.Attr("rerun", "never")
	const callers, each = 8, 60
	store := realserver.Redis(t)
	servers := []*realserver.Server{start(t, store.Addr), start(t, store.Addr), start(t, store.Addr)}
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
		Logger: slog.New(slog.DiscardHandler), Timeout: 20 * time.Second,
		Middleware: []yodel.Middleware{once.Keys(), retry.With(&retry.Options{Times: 50, Share: 1})},
	})
	defer c.Close()
	counts := direct(t, store.Addr)
	var made, known, unknown atomic.Int32
	var load sync.WaitGroup
	for caller := range callers {
		load.Go(func() {
			for i := range each {
				in := fmt.Sprintf("%d-%d", caller, i)
				out, err := work.Call(t.Context(), c, &in)
				made.Add(1)
				n, _ := counts.Get(t.Context(), "executed:"+in).Int()
				e, _ := errors.AsType[*yodel.Error](err)
				switch {
				case n > 1:
					t.Errorf("%s was executed %d times", in, n)
				case err == nil && *out == in+" 1" && n == 1:
					known.Add(1)
				case e != nil && e.ID == "YDL3402" && !e.NotProcessed:
					unknown.Add(1)
				default:
					t.Errorf("%s: got %v, %v after %d executions", in, out, err, n)
				}
			}
		})
	}
	for i, s := range servers { // one after the other, in the middle of it
		for made.Load() < int32((i+1)*callers*each/4) && !t.Failed() {
			<-time.After(time.Millisecond)
		}
		s.Kill()
		s.Restart()
	}
	load.Wait()
	t.Logf("%d calls have an outcome, of %d it is not known", known.Load(), unknown.Load())
	if known.Load() < callers*each*9/10 {
		t.Error("these are too few")
	}
}

// Redis cannot be reached now and then, while it is asked: what is not known is refused, or said to
// be unknown, and nothing is executed twice.
func TestRedisIsCutOff(t *testing.T) {
	t.Attr("rerun", "never")
	const callers, each = 8, 40
	proxy := realserver.Between(t, realserver.Redis(t).Addr)
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler), Keys: once.With(&once.Options{
		Store: open(t, proxy.Addr, nil), Lease: 200 * time.Millisecond, Timeout: 30 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})})
	var executions sync.Map
	var made, known, unknown, refused atomic.Int32
	work.Handle(s.Server, func(_ context.Context, in *string) (*string, error) {
		n, _ := executions.LoadOrStore(*in, new(atomic.Int32))
		if n := n.(*atomic.Int32).Add(1); n != 1 {
			t.Errorf("%s is executed %d times", *in, n)
		}
		return in, nil
	})
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Timeout: 20 * time.Second, Middleware: []yodel.Middleware{
		once.Keys(), retry.With(&retry.Options{Times: 5, MaxBackoff: 50 * time.Millisecond, Share: 1}),
	}}, s)
	var load sync.WaitGroup
	for caller := range callers {
		load.Go(func() {
			for i := range each {
				in := fmt.Sprintf("%d-%d", caller, i)
				_, err := work.Call(t.Context(), c, &in)
				made.Add(1)
				e, _ := errors.AsType[*yodel.Error](err)
				switch {
				case err == nil:
					known.Add(1)
				case e.ID == "YDL3402":
					unknown.Add(1)
				case e.Code == yodel.Unavailable:
					refused.Add(1)
				default:
					t.Errorf("%s: %v", in, err)
				}
			}
		})
	}
	for i := range 5 {
		for made.Load() < int32(i*callers*each/6) && !t.Failed() {
			<-time.After(time.Millisecond)
		}
		proxy.Cut()
		<-time.After(100 * time.Millisecond)
		proxy.Heal()
	}
	load.Wait()
	t.Logf("%d calls have an outcome, of %d it is not known, %d were refused", known.Load(), unknown.Load(), refused.Load())
	if known.Load() < callers*each/2 {
		t.Error("these are too few")
	}
}

// Processes that share a limit keep to it together.
func TestProcessesShareALimit(t *testing.T) {
	const processes, perSecond, burst, batch = 4, 200, 20, 5
	server := realserver.Redis(t)
	pass := func(context.Context, *yodel.Call) error { return nil }
	var passed atomic.Int32
	var wg sync.WaitGroup
	began := time.Now()
	for range processes {
		h := rate.With(&rate.Limit{PerSecond: perSecond, Burst: burst, Batch: batch, Store: open(t, server.Addr, nil), By: rate.Tenant})(pass)
		wg.Go(func() {
			for time.Since(began) < 2*time.Second {
				if h(t.Context(), &yodel.Call{Tenant: "a"}) == nil {
					passed.Add(1)
				}
				<-time.After(time.Millisecond)
			}
		})
	}
	wg.Wait()
	took := time.Since(began).Seconds()
	n, most := float64(passed.Load()), burst+perSecond*took+processes*(batch-1)
	t.Logf("%v calls in %.2f s, at most %.0f", n, took, most)
	if n > most || n < perSecond*took*0.6 {
		t.Errorf("%v calls passed in %.2f s, want at most %.0f and not much less", n, took, most)
	}
}

// Servers that share Redis remember each other's keys: see package keys.
func TestNoKeyIsExecutedTwiceWithRedis(t *testing.T) {
	t.Attr("rerun", "never")
	addr := realserver.Redis(t).Addr
	seed := rand.Uint64()
	kind := keys.Kind{Name: "redis", Repeats: true, Memory: func() (once.KeyMemory, func()) {
		store := redis.New(addr, nil)
		t.Cleanup(func() { store.Close() })
		o := &once.Options{Store: store, Lease: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
		return once.With(o), func() { store.Close() }
	}}
	t.Log(keys.Run(t, kind, seed, 1500*time.Millisecond))
	client := direct(t, addr)
	kind.Lose = func() {
		if err := client.FlushAll(context.Background()).Err(); err != nil {
			t.Error(err)
		}
	}
	kind.Lose() // the keys of the first run
	t.Log(keys.Run(t, kind, seed, 1500*time.Millisecond))
}

// Redis loses its data while a call is executed, and the connection of its caller is lost: the call
// is not executed again, and the caller learns why.
func TestRedisLosesItsData(t *testing.T) {
	t.Attr("rerun", "never")
	for name, lose := range map[string]func(t *testing.T, s *realserver.Server, c *goredis.Client){
		"emptied":             func(t *testing.T, _ *realserver.Server, c *goredis.Client) { must(t, c.FlushAll(t.Context()).Err()) },
		"killed":              func(_ *testing.T, s *realserver.Server, _ *goredis.Client) { s.RestartEmpty() },
		"put back in time":    func(_ *testing.T, s *realserver.Server, _ *goredis.Client) { s.Restart() },
		"with its clock back": func(t *testing.T, _ *realserver.Server, c *goredis.Client) { began(t, c, 9e15, "yodel:once:") },
	} {
		t.Run(name, func(t *testing.T) {
			server := realserver.Redis(t)
			direct := direct(t, server.Addr)
			o := &once.Options{Store: open(t, server.Addr, nil), Logger: slog.New(slog.DiscardHandler)}
			var executed atomic.Int32
			method := func(ctx context.Context, in *string) (*string, error) {
				if executed.Add(1) == 1 {
					lose(t, server, direct)
					yodel.CallFrom(ctx).Peer().Conn.Close()
					panic("no other call of this server gets its outcome")
				}
				return in, nil
			}
			c := yodel.NewClient(discovery.Static(serveKeys(t, o, method), serveKeys(t, o, method)), &yodel.ClientOptions{
				Logger: o.Logger, Middleware: []yodel.Middleware{retry.With(&retry.Options{Times: 5, MaxBackoff: time.Millisecond, Share: 1})},
			})
			defer c.Close()
			must(t, c.Ready(t.Context()))
			for all := c.Endpoints(); len(all) < 2 || !all[0].Connected() || !all[1].Connected(); all = c.Endpoints() {
				<-time.After(time.Millisecond) // both servers have the memory that is lost
			}
			_, err := o.Store.(*redis.Store).Identity(t.Context())
			must(t, err)
			began(t, direct, 1e15, "-")                                      // an older memory than the calls
			must(t, direct.ConfigSet(t.Context(), "appendonly", "no").Err()) // it restarts as it is now
			in := "x"
			for range 2 { // by retries, and by the program
				_, err := work.Do(t.Context(), c, &yodel.Call{IdempotencyKey: "lost"}, &in)
				if e, _ := errors.AsType[*yodel.Error](err); e == nil || e.ID != "YDL3402" || e.NotProcessed || executed.Load() != 1 {
					t.Errorf("got %v after %d executions", err, executed.Load())
				}
			}
			refused := 0
			for i := range 100 {
				_, err := work.Do(t.Context(), c, &yodel.Call{IdempotencyKey: fmt.Sprint(i)}, &in)
				if e, _ := errors.AsType[*yodel.Error](err); e != nil && e.ID == "YDL3402" {
					refused++ // the first call of a part
				} else if err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			}
			if refused > 50 {
				t.Errorf("%d later calls were refused", refused)
			}
		})
	}
}

// began sets when the memories began, in microseconds, and removes the keys with a prefix.
func began(t *testing.T, c *goredis.Client, since int64, without string) {
	t.Helper()
	script := `for _, key in ipairs(redis.call('KEYS', 'yodel:memory:*')) do redis.call('HSET', key, 'since', ARGV[1]) end
		for _, key in ipairs(redis.call('KEYS', ARGV[2] .. '*')) do redis.call('DEL', key) end
		return 1`
	must(t, c.Eval(t.Context(), script, nil, since, without).Err())
}

// serveKeys serves a method with a memory of keys of its own.
func serveKeys(t *testing.T, o *once.Options, f func(context.Context, *string) (*string, error)) (addr string) {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Logger: o.Logger, Keys: once.With(o)})
	work.Handle(s, f)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		must(t, <-served)
	})
	return l.Addr().String()
}

// The name of the memory is that of the data, whatever the address: it changes when these are lost.
func TestIdentityIsThatOfTheData(t *testing.T) {
	server := realserver.Redis(t)
	identity := func(o *redis.Options) string {
		store := open(t, server.Addr, o)
		name, err := store.Identity(t.Context())
		must(t, err)
		return name
	}
	first := identity(nil)
	if again := identity(nil); again != first || !strings.HasPrefix(first, "redis:") {
		t.Errorf("the name was %q, and then %q", first, again)
	}
	if other := identity(&redis.Options{Prefix: "other"}); other == first {
		t.Errorf("two memories have the name %q", first)
	}
	server.RestartEmpty()
	if empty := identity(nil); empty == first {
		t.Errorf("the memory was lost, and has the same name")
	}
}
