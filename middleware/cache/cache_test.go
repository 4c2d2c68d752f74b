// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type Quote struct {
	Symbol string
	Count  int // how many were executed
	Tags   []string
}

const (
	get   yodel.Method[string, Quote] = "Quote.Get"
	watch yodel.Feed[string, Quote]   = "Quote.Watch"
)

// A service counts what it executes.
type service struct {
	executed atomic.Int32
	err      atomic.Pointer[yodel.Error]
}

func serve(t testing.TB, ms ...yodel.Middleware) (*service, *yodeltest.Server) {
	t.Helper()
	s, server := &service{}, yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: ms})
	get.Handle(server.Server, func(ctx context.Context, in *string) (*Quote, error) {
		n := s.executed.Add(1)
		call := yodel.CallFrom(ctx)
		call.Trailer = yodel.Metadata{"seen": call.Metadata["user"] + call.Tenant}
		call.ReplyAttachment = []byte("attached")
		call.SetHeader(yodel.Metadata{"served": call.Metadata["user"] + call.Tenant})
		if err := s.err.Load(); err != nil {
			return nil, err
		}
		return &Quote{Symbol: *in, Count: int(n), Tags: []string{"x"}}, nil
	})
	watch.Handle(server.Server, func(_ context.Context, in *string, send yodel.Send[Quote]) error {
		return send(&Quote{Symbol: *in, Count: int(s.executed.Add(1))})
	})
	server.Handle("Quote.Pair", func(a, b string) (string, int) { return a + b, int(s.executed.Add(1)) })
	return s, server
}

func client(t testing.TB, server *yodeltest.Server, ms ...yodel.Middleware) *yodel.Client {
	t.Helper()
	return yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: ms}, server)
}

// sides is a client with the middleware, and one of a server with it.
func sides(t *testing.T, o *cache.Options) map[string]func() (*service, *yodel.Client) {
	t.Helper()
	return map[string]func() (*service, *yodel.Client){
		"client": func() (*service, *yodel.Client) {
			s, server := serve(t)
			return s, client(t, server, cache.With(o))
		},
		"server": func() (*service, *yodel.Client) {
			s, server := serve(t, cache.With(o))
			return s, client(t, server)
		},
	}
}

func do(t *testing.T, c *yodel.Client, call *yodel.Call, symbol string) Quote {
	t.Helper()
	quote, err := get.Do(t.Context(), c, call, &symbol)
	if err != nil {
		t.Errorf("%s: %v", symbol, err)
		return Quote{}
	}
	if string(call.ReplyAttachment) != "attached" || call.Trailer["seen"] != call.Metadata["user"]+call.Tenant {
		t.Errorf("%s: got attachment %q and trailer %v", symbol, call.ReplyAttachment, call.Trailer)
	}
	if got, is := call.Header()["served"]; !is || got != call.Metadata["user"]+call.Tenant {
		t.Errorf("%s: got the header %v", symbol, call.Header())
	}
	return *quote
}

func TestCallsForTheSameHaveTheSameReply(t *testing.T) {
	t.Attr("rerun", "never")
	for side, start := range sides(t, &cache.Options{Methods: []string{"Quote.Get"}}) {
		s, c := start()
		for range 3 {
			if q := do(t, c, &yodel.Call{}, "A"); q.Count != 1 {
				t.Errorf("%s: got %+v, want the first reply", side, q)
			}
			if q := do(t, c, &yodel.Call{}, "B"); q.Count != 2 || q.Symbol != "B" {
				t.Errorf("%s: got %+v, want the second reply", side, q)
			}
		}
		before := s.executed.Load()
		for _, call := range []*yodel.Call{
			{Tenant: "acme"}, {Metadata: yodel.Metadata{"user": "ali"}}, {Metadata: yodel.Metadata{"user": "bob"}},
			{Metadata: yodel.Metadata{"user": "bob", "a": ""}}, {Metadata: yodel.Metadata{"user": "bob", "b": ""}},
		} {
			for range 2 {
				do(t, c, call, "A")
				call.Endpoint = nil
			}
		}
		if n := s.executed.Load() - before; n != 5 {
			t.Errorf("%s: five kinds of calls were executed %d times", side, n)
		}
	}
}

func TestVaryAndKeySayWhatCounts(t *testing.T) {
	o := &cache.Options{
		Methods: []string{"Quote.Get"}, Vary: []string{"lang"},
		Key: func(_ context.Context, call *yodel.Call) string { return call.Key },
	}
	for side, start := range sides(t, o) {
		s, c := start()
		for _, test := range []struct {
			md       yodel.Metadata
			key      string
			executed int32
		}{
			{nil, "", 1},
			{yodel.Metadata{"trace": "1"}, "", 1},
			{yodel.Metadata{"trace": "2", "lang": ""}, "", 2},
			{yodel.Metadata{"trace": "3", "lang": "de"}, "", 3},
			{yodel.Metadata{"trace": "4", "lang": "de"}, "", 3},
			{yodel.Metadata{"lang": "de"}, "k", 4},
		} {
			if _, err := get.Do(t.Context(), c, &yodel.Call{Metadata: test.md, Key: test.key}, new("A")); err != nil || s.executed.Load() != test.executed {
				t.Errorf("%s: %v, key %q: %d executions (%v), want %d", side, test.md, test.key, s.executed.Load(), err, test.executed)
			}
		}
	}
}

func TestWhatIsNotCached(t *testing.T) {
	t.Attr("rerun", "never")
	for side, start := range sides(t, &cache.Options{Methods: []string{"Quote.Get", "Quote.Watch"}}) {
		s, c := start()
		twice := func(what string, f func() error) {
			t.Helper()
			before := s.executed.Load()
			for range 2 {
				if err := f(); err != nil {
					t.Errorf("%s: %s: %v", side, what, err)
				}
			}
			if n := s.executed.Load() - before; n != 2 {
				t.Errorf("%s: %s: executed %d times, want 2", side, what, n)
			}
		}
		with := func(call *yodel.Call) func() error {
			return func() error { call.Method, call.Args = "Quote.Get", "A"; return c.Do(t.Context(), call) }
		}
		twice("an attachment", with(&yodel.Call{Attachment: []byte{1}}))
		twice("an idempotency key", with(&yodel.Call{IdempotencyKey: "k"}))
		twice("another method", func() error { return c.Call(t.Context(), "Quote.Pair", yodel.Values{"a", "b"}, nil) })
		twice("a stream", func() error { _, err := watch.Call(t.Context(), c, new("A")).Next(); return err })
		if side == "client" { // a context does not travel
			twice("a fresh one", func() error { return c.Call(cache.Fresh(t.Context()), "Quote.Get", "A", nil) })
		}
		s.err.Store(&yodel.Error{Code: yodel.NotFound})
		twice("a failure", func() error {
			if err := c.Call(t.Context(), "Quote.Get", "C", nil); !errors.Is(err, yodel.NotFound) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
		s.err.Store(nil)
	}
	s, server := serve(t)
	c := client(t, server, cache.For(time.Minute, "Quote.Get"))
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Do(t.Context(), &yodel.Call{Method: "Quote.Get", Args: "A", Endpoint: c.Endpoints()[0]}); err != nil {
			t.Error(err)
		}
	}
	if n := s.executed.Load(); n != 2 {
		t.Errorf("pinned calls were executed %d times, want 2", n)
	}
}

func TestFallbacksAreNotKept(t *testing.T) {
	s, server := serve(t)
	c := client(t, server, cache.For(time.Minute, "Quote.Get"), fallback.To(Quote{Symbol: "none"}))
	s.err.Store(&yodel.Error{Code: yodel.Unavailable})
	if quote, err := get.Call(t.Context(), c, new("A")); err != nil || quote.Symbol != "none" {
		t.Errorf("got %+v, %v", quote, err)
	}
	s.err.Store(nil)
	if quote, err := get.Call(t.Context(), c, new("A")); err != nil || quote.Symbol != "A" {
		t.Errorf("got %+v, %v, want the service's", quote, err)
	}
}

func TestCallersShareNoMemory(t *testing.T) {
	_, server := serve(t)
	c := client(t, server, cache.For(time.Minute, "Quote.Get"))
	for range 3 {
		call := &yodel.Call{}
		quote := do(t, c, call, "A")
		if quote.Tags[0] != "x" {
			t.Errorf("got %v", quote.Tags)
		}
		quote.Tags[0], call.ReplyAttachment[0], call.Trailer["seen"], call.Header()["served"] = "changed", '!', "changed", "changed"

		var raw yodel.Encoded
		if err := c.Call(t.Context(), "Quote.Get", "A", &raw); err != nil || !strings.Contains(string(raw.Body), `"x"`) {
			t.Errorf("got %s, %v", raw.Body, err)
		}
		clear(raw.Body)
	}
}

func TestSeveralValues(t *testing.T) {
	for side, start := range sides(t, &cache.Options{Methods: []string{"Quote.Pair"}}) {
		_, c := start()
		for range 2 {
			var joined string
			var n int
			if err := c.Call(t.Context(), "Quote.Pair", yodel.Values{"a", "b"}, yodel.Values{&joined, &n}); err != nil || joined != "ab" || n != 1 {
				t.Errorf("%s: got %q, %d, %v", side, joined, n, err)
			}
		}
		if err := c.Call(t.Context(), "Quote.Pair", yodel.Values{"a", "b"}, new(string)); err == nil {
			t.Errorf("%s: one value took two", side)
		}
	}
}

func TestRepliesGetOld(t *testing.T) {
	o := &cache.Options{Methods: []string{"Quote.Get"}, For: time.Minute}
	synctest.Test(t, func(t *testing.T) {
		for side, start := range sides(t, o) {
			_, c := start()
			for _, want := range []int{1, 1, 2, 2, 3} {
				if q := do(t, c, &yodel.Call{}, "A"); q.Count != want {
					t.Errorf("%s: got reply %d, want %d", side, q.Count, want)
				}
				time.Sleep(31 * time.Second)
			}
		}
	})
}

func TestStaleRepliesStandForAServiceThatIsAway(t *testing.T) {
	o := &cache.Options{Methods: []string{"Quote.Get"}, For: time.Minute, Stale: time.Hour}
	synctest.Test(t, func(t *testing.T) {
		for side, start := range sides(t, o) {
			s, c := start()
			do(t, c, &yodel.Call{}, "A")
			time.Sleep(2 * time.Minute)
			for _, test := range []struct {
				code  yodel.Code
				id    string
				stale bool
			}{
				{yodel.Unavailable, "", true},
				{yodel.DeadlineExceeded, "", true},
				{yodel.ResourceExhausted, "", true},
				{yodel.ResourceExhausted, "YDL2202", false},
				{yodel.NotFound, "", false},
				{yodel.Internal, "", false},
			} {
				s.err.Store(&yodel.Error{Code: test.code, ID: test.id})
				call := &yodel.Call{}
				quote, err := get.Do(t.Context(), c, call, new("A"))
				if test.stale && (err != nil || quote.Count != 1 || call.Trailer[cache.Key] != "2m0s") || !test.stale && !errors.Is(err, test.code) {
					t.Errorf("%s: %v: got %+v, %v, trailer %v", side, test.code, quote, err, call.Trailer)
				}
			}
			s.err.Store(&yodel.Error{Code: yodel.Unavailable})
			if err := c.Call(cache.Fresh(t.Context()), "Quote.Get", "A", nil); side == "client" && !errors.Is(err, yodel.Unavailable) {
				t.Errorf("%s: a fresh one: %v", side, err)
			}
			time.Sleep(time.Hour)
			if _, err := get.Call(t.Context(), c, new("A")); !errors.Is(err, yodel.Unavailable) {
				t.Errorf("%s: after an hour: %v", side, err)
			}
		}
	})
}

// The store belongs to the client: two middlewares for the same have one.
func TestWhatIsKeptSurvivesANewChain(t *testing.T) {
	t.Attr("rerun", "never")
	s, server := serve(t)
	var fresh atomic.Bool
	around := func(next yodel.Handler) yodel.Handler { // the chain and the one after it
		first, second := cache.For(time.Minute, "Quote.Get")(next), cache.For(time.Minute, "Quote.Get")(next)
		return func(ctx context.Context, call *yodel.Call) error {
			if fresh.Load() {
				return second(ctx, call)
			}
			return first(ctx, call)
		}
	}
	c := client(t, server, around)
	do(t, c, &yodel.Call{}, "A")
	fresh.Store(true)
	do(t, c, &yodel.Call{}, "A")
	if n := s.executed.Load(); n != 1 {
		t.Errorf("executed %d times, want 1", n)
	}
}

func TestContentsArePurgedAndCounted(t *testing.T) {
	for side, start := range sides(t, &cache.Options{Methods: []string{"Quote.Get"}}) { // which tells nobody
		_, c := start()
		do(t, c, &yodel.Call{}, side)
	}
	contents := &cache.Contents{}
	for side, start := range sides(t, &cache.Options{Methods: []string{"Quote.Get", "Quote.Pair"}, Contents: contents}) {
		before := contents.Stats()
		s, c := start()
		calls := func(executed int32) {
			t.Helper()
			n := s.executed.Load()
			for _, call := range []*yodel.Call{{}, {Tenant: "acme"}} {
				for _, symbol := range []string{"A", "B"} {
					do(t, c, call, symbol)
					call.Endpoint = nil
				}
			}
			if err := c.Call(t.Context(), "Quote.Pair", yodel.Values{"a", "b"}, nil); err != nil {
				t.Error(err)
			}
			if n = s.executed.Load() - n; n != executed {
				t.Errorf("%s: %d calls were executed, want %d", side, n, executed)
			}
		}
		calls(5)
		calls(0)
		purged := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d replies were purged: %s, want %d", side, got, what, want)
			}
		}
		purged("of a method", contents.Purge("Quote.Get"), 4)
		calls(4)
		purged("for a request", contents.PurgeFunc(func(e cache.Entry) bool {
			if e.Made.IsZero() || e.Size < 200 {
				t.Errorf("%s: got %+v", side, e)
			}
			return e.Method == "Quote.Get" && e.Tenant == "acme" && string(e.Args) == `"A"`
		}), 1)
		calls(1)
		purged("nothing", contents.Purge("Quote"), 0)
		calls(0)
		got := contents.Stats()
		if got.Entries != 5 || got.Bytes < 5*200 || got.Hits-before.Hits != 5+1+4+5 || got.Misses-before.Misses != 5+4+1 || got.Evicted != 0 || got.Stale != 0 {
			t.Errorf("%s: got %+v after %+v", side, got, before)
		}
		purged("all", contents.Purge(), 5)
		if got := contents.Stats(); got.Entries != 0 || got.Bytes != 0 {
			t.Errorf("%s: got %+v", side, got)
		}
	}
}

// A reply that was on its way when the contents were purged may be older than the purge: it is not
// kept.
func TestAReplyOnItsWayIsNotKeptAfterAPurge(t *testing.T) {
	contents := &cache.Contents{}
	s, server := serve(t)
	purge := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			err := next(ctx, call)
			if s.executed.Load() == 1 {
				contents.Purge()
			}
			return err
		}
	}
	c := client(t, server, cache.With(&cache.Options{Methods: []string{"Quote.Get"}, Contents: contents}), purge)
	for _, want := range []int{1, 2, 2} {
		if q := do(t, c, &yodel.Call{}, "A"); q.Count != want {
			t.Errorf("got reply %d, want %d", q.Count, want)
		}
	}
}

// hot is a client whose calls are answered from the cache, with a codec that takes no memory.
func hot(t testing.TB) (*yodel.Client, *yodel.Call) {
	t.Helper()
	server := yodeltest.NewServer(t, nil)
	yodel.Method[[]byte, []byte]("Raw.Get").Handle(server.Server, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Codec: raw.Codec, Middleware: []yodel.Middleware{cache.For(time.Hour, "Raw.Get")}}, server)
	in, out := []byte("key"), make([]byte, 0, 10)
	call := &yodel.Call{Method: "Raw.Get", Args: &in, Reply: &out}
	if err := c.Do(t.Context(), call); err != nil || string(out) != "key" {
		t.Fatal(string(out), err)
	}
	call.Endpoint = nil
	return c, call
}

func TestAHitAllocatesNothing(t *testing.T) {
	c, call := hot(t)
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		if err := c.Call(ctx, call.Method, call.Args, call.Reply); err != nil {
			t.Error(err)
		}
	}); n != 0 && !raceEnabled {
		t.Errorf("a hit takes %v allocations, want 0", n)
	}
}

func BenchmarkHit(b *testing.B) {
	c, call := hot(b)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Call(ctx, call.Method, call.Args, call.Reply); err != nil {
			b.Fatal(err)
		}
	}
}

// A Call that is used again has the endpoint of the last time in it, which is not one of its
// caller's choice.
func TestACallThatIsUsedAgainIsCached(t *testing.T) {
	s, server := serve(t)
	c := client(t, server, cache.For(time.Minute, string(get)))
	for _, symbol := range []string{"A", "B", "B", "A"} {
		call := &yodel.Call{Method: string(get), Args: &symbol}
		for range 3 {
			call.Reply = &Quote{}
			if err := c.Do(t.Context(), call); err != nil {
				t.Error(err)
			}
		}
	}
	call := &yodel.Call{Method: string(get)}
	for _, symbol := range []string{"C", "D", "C", "D"} {
		call.Args, call.Reply = &symbol, &Quote{}
		if err := c.Do(t.Context(), call); err != nil || call.Reply.(*Quote).Symbol != symbol {
			t.Errorf("got %v, %v", call.Reply, err)
		}
	}
	if n := s.executed.Load(); n != 4 {
		t.Errorf("%d calls were executed, want one of each of 4", n)
	}
}
