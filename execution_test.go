// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// A ledger notes how often each call was executed.
type ledger struct {
	mu       sync.Mutex
	executed map[int]int
}

func (l *ledger) note(id int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.executed[id]++
}

func (l *ledger) times(id int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.executed[id]
}

// retryOnce tries a call that may be repeated once more, elsewhere.
func retryOnce(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		if err != nil && yodel.CodeOf(err) == yodel.Unavailable && call.Attempts().NoRepeat(err) == "" {
			err = next(ctx, call)
		}
		return err
	}
}

// TestLostConnectionsExecuteNothingTwice cuts and resets connections under load. Every caller has
// one outcome. A call that was answered has been executed once, one that says so has not been
// executed, and no other was executed twice.
func TestLostConnectionsExecuteNothingTwice(t *testing.T) {
	t.Attr("rerun", "never")
	const callers, each = 16, 150
	s := yodel.NewServer(nil)
	l := &ledger{executed: make(map[int]int)}
	const Do yodel.Method[int, int] = "Do"
	Do.Handle(s, func(_ context.Context, id *int) (*int, error) { l.note(*id); return id, nil })
	addr := serve(t, s)
	proxies := []*proxy{newProxy(t, addr), newProxy(t, addr)}
	clients := []*yodel.Client{
		newClient(t, nil, proxies[0].addr(), proxies[1].addr()),
		newClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{retryOnce}}, proxies[0].addr(), proxies[1].addr()),
	}
	var ids, answered, unsent, unknown atomic.Int64
	check := func(id int, got *int, err error) {
		n := l.times(id)
		e, ok := errors.AsType[*yodel.Error](err)
		switch {
		case err == nil && (*got != id || n != 1):
			t.Errorf("call %d was answered with %d after %d executions", id, *got, n)
		case err == nil:
			answered.Add(1)
		case !ok || e.Code != yodel.Unavailable:
			t.Errorf("call %d: %v", id, err)
		case e.NotProcessed && n != 0:
			t.Errorf("call %d was executed and says it was not: %+v", id, err)
		case e.NotProcessed:
			unsent.Add(1)
		default:
			unknown.Add(1)
		}
	}
	var wg sync.WaitGroup
	for i := range callers {
		c := clients[i%2]
		wg.Go(func() {
			// a machine may be through before the first cut
			for k := 0; k < each || unknown.Load() == 0 && k < 50*each; k++ {
				id := int(ids.Add(1))
				if k%4 != 0 {
					got, err := Do.Call(t.Context(), c, &id)
					check(id, got, err)
					continue
				}
				outcomes := make(chan struct{}, 2)
				Do.Then(t.Context(), c, &id, func(got *int, err error) { check(id, got, err); outcomes <- struct{}{} })
				receive(t, outcomes, "an asynchronous call ends")
				if len(outcomes) != 0 {
					t.Errorf("call %d ended twice", id)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for round := 0; ; round++ {
		p := proxies[round%2]
		p.mu.Lock()
		before := p.made
		p.mu.Unlock()
		if round%4 < 2 {
			p.reset()
		} else {
			p.cut()
		}
		seen := ids.Load()
		until(t, "calls go on over a new connection", func() bool {
			p.mu.Lock()
			again := p.made > before && ids.Load() > seen+20
			p.mu.Unlock()
			return again || isClosed(done)
		})
		if isClosed(done) {
			break
		}
	}
	for id := 1; id <= int(ids.Load()); id++ {
		if n := l.times(id); n > 1 {
			t.Errorf("call %d was executed %d times", id, n)
		}
	}
	t.Logf("%d calls answered, %d certainly not executed, %d unknown", answered.Load(), unsent.Load(), unknown.Load())
	if unknown.Load() == 0 || answered.Load() < callers*each/2 {
		t.Error("the test did not interrupt calls, or too many")
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// What may be executed twice is told in four ways, and then a call is repeated that may have been
// executed.
func TestIdempotentCallsMayBeRepeated(t *testing.T) {
	for _, test := range []struct {
		name   string
		o      yodel.ClientOptions
		call   yodel.Call
		mark   bool
		repeat bool
	}{
		{"nothing said", yodel.ClientOptions{}, yodel.Call{}, false, false},
		{"by the call", yodel.ClientOptions{}, yodel.Call{Idempotent: true}, false, true},
		{"by a key that the server does not remember", yodel.ClientOptions{}, yodel.Call{IdempotencyKey: "42"}, false, false},
		{"by the client", yodel.ClientOptions{Idempotent: []string{"Other", "Work"}}, yodel.Call{}, false, true},
		{"by the server", yodel.ClientOptions{}, yodel.Call{}, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := yodel.NewServer(nil)
			l := &ledger{executed: make(map[int]int)}
			var victim atomic.Pointer[yodel.Peer]
			var known atomic.Bool // the client knows what the server says of the method
			handle(t, s, "Work", func(ctx context.Context, _ *Empty) (*Empty, error) {
				if !known.Load() {
					return nil, nil
				}
				l.note(1)
				if l.times(1) == 1 { // the connection breaks while the first attempt runs
					victim.Store(yodel.CallFrom(ctx).Peer())
					victim.Load().Conn.Close()
				}
				return nil, nil
			})
			if test.mark {
				s.MarkIdempotent("Work")
			}
			var may, attempts atomic.Int64
			test.o.Middleware = []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					for {
						attempts.Add(1)
						err := next(ctx, call)
						if err == nil || call.Attempts().NoRepeat(err) != "" {
							return err
						}
						if !yodel.NotProcessed(err) {
							may.Add(1)
						}
					}
				}
			}}
			addr := serve(t, s)
			c := newClient(t, &test.o, addr, newProxy(t, addr).addr())
			must(t, c.Do(t.Context(), &yodel.Call{Method: "Work", Args: &Empty{}}))
			known.Store(true)
			call := test.call
			call.Method, call.Args = "Work", &Empty{}
			err := c.Do(t.Context(), &call)
			if test.repeat {
				if err != nil || l.times(1) != 2 || may.Load() != 1 {
					t.Errorf("got %v after %d executions, repeated %d times; want success after 2", err, l.times(1), may.Load())
				}
				return
			}
			if e := wantError(t, err, yodel.Unavailable, "YDL1104"); e.NotProcessed || l.times(1) != 1 {
				t.Errorf("got %v after %d executions, want 1", err, l.times(1))
			}
		})
	}
}
