// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
)

const note yodel.Method[string, struct{}] = "Test.Note"

// A journal is what a server noted, and how it fails.
type journal struct {
	mu    sync.Mutex
	lines []string
	err   error // of each call
}

func (j *journal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
}

// noted returns the lines, in one.
func (j *journal) noted() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, " ")
}

func (j *journal) note(_ context.Context, in *string) (*struct{}, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.lines = append(j.lines, *in)
	}
	return nil, j.err
}

// A drop is what Dropped was told.
type drop struct {
	line string
	err  error
}

// A failback is a server with a journal, and a client that repeats calls later.
type failback struct {
	journal

	client *yodel.Client
	drops  []drop
	logs   strings.Builder
}

func newFailback(t *testing.T, o retry.LaterOptions, above ...yodel.Middleware) *failback {
	t.Helper()
	f := &failback{}
	network := mem.New()
	s := serve(t, network, "a", nil, nil)
	note.Handle(s, f.note)
	s.MarkIdempotent(string(note))
	o.Logger = slog.New(slog.NewTextHandler(&f.logs, nil))
	o.Dropped = func(call *yodel.Call, err error) {
		encoded, _ := call.Args.(*yodel.Encoded)
		f.drops = append(f.drops, drop{string(encoded.Body), err})
	}
	f.client = dial(t, network, []string{"a"}, append(above, retry.Later(&o))...)
	// so that it knows what is idempotent
	if _, err := inspect.Ping.Call(t.Context(), f.client, &inspect.Empty{}); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestLaterAnswersTheCallerAndTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailback(t, retry.LaterOptions{})
		f.fail(yodel.Errorf(yodel.Unavailable, "the disk is away"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		began := time.Now()
		for i := range 5 {
			line := fmt.Sprint("line", i)
			call := &yodel.Call{Method: string(note), Args: &line, Idempotent: true, Metadata: yodel.Metadata{"k": "v"}}
			if i%2 == 0 {
				call.Reply = &struct{}{}
			}
			if err := f.client.Do(ctx, call); err != nil {
				t.Errorf("got %v", err)
			}
			if call.Args != any(&line) || call.Budget != 0 {
				t.Errorf("the caller's call was changed: %+v", call)
			}
			line = "changed"
			call.Metadata["k"] = "changed"
		}
		cancel()
		if time.Since(began) != 0 {
			t.Errorf("the callers waited for %v", time.Since(began))
		}
		time.Sleep(5 * time.Second)
		if got := f.noted(); got != "" {
			t.Errorf("got %s", got)
		}
		f.fail(nil)
		time.Sleep(10 * time.Second)
		for i := range 5 {
			if n := strings.Count(f.noted(), fmt.Sprint("line", i)); n != 1 {
				t.Errorf("line%d was noted %d times: %s", i, n, f.noted())
			}
		}
		if len(f.drops) > 0 || f.logs.Len() > 0 {
			t.Errorf("dropped: %v %s", f.drops, f.logs.String())
		}
	})
}

func TestLaterTellsWhoeverNeedsToKnowOfTheError(t *testing.T) {
	unavailable := yodel.Errorf(yodel.Unavailable, "the disk is away")
	for _, test := range []struct {
		name   string
		err    error
		change func(c *yodel.Call)
		hidden bool
	}{
		{"no reply", unavailable, func(*yodel.Call) {}, true},
		{"an empty one", unavailable, func(c *yodel.Call) { c.Reply = &struct{}{} }, true},
		{"no values", unavailable, func(c *yodel.Call) { c.Args, c.Reply = yodel.Values{"x"}, yodel.Values{} }, true},
		{"a reply", unavailable, func(c *yodel.Call) { c.Reply = new(string) }, false},
		{"values", unavailable, func(c *yodel.Call) { c.Args, c.Reply = yodel.Values{"x"}, yodel.Values{new(string)} }, false},
		{"not idempotent", unavailable, func(c *yodel.Call) { c.Idempotent = false }, false},
		{"ordered", unavailable, func(c *yodel.Call) { c.Ordered = true }, false},
		{"an answer", yodel.Errorf(yodel.NotFound, "no such book"), func(*yodel.Call) {}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, mem.New(), nil, retry.Later(&retry.LaterOptions{Logger: slog.New(slog.DiscardHandler)}), answer(func(*yodel.Call) error { return test.err }))
				line := "x"
				call := &yodel.Call{Method: string(note), Args: &line, Idempotent: true}
				test.change(call)
				if err := c.Do(t.Context(), call); (err == nil) != test.hidden {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestLaterGivesUpLoudly(t *testing.T) {
	for _, test := range []struct {
		name     string
		then     error // of the attempts in the background
		attempts int
		code     yodel.Code
	}{
		{"after all attempts", yodel.Errorf(yodel.Unavailable, "the disk is away"), 4, yodel.Unavailable},
		{"after a final answer", yodel.Errorf(yodel.NotFound, "no such book"), 1, yodel.NotFound},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := -1
				f := newFailback(t, retry.LaterOptions{Times: 4}, func(next yodel.Handler) yodel.Handler {
					return func(ctx context.Context, call *yodel.Call) error {
						attempts++ // but for the ping
						return next(ctx, call)
					}
				})
				f.fail(yodel.Unavailable)
				line := "x"
				if _, err := note.Call(t.Context(), f.client, &line); err != nil {
					_, err = note.Call(t.Context(), f.client, &line) // now it knows that the method is idempotent
					if attempts--; err != nil {
						t.Errorf("got %v", err)
					}
				}
				f.fail(test.then)
				time.Sleep(10 * time.Minute)
				if len(f.drops) != 1 || f.drops[0].line != `"x"` || yodel.CodeOf(f.drops[0].err) != test.code || attempts != 1+test.attempts {
					t.Errorf("got %d attempts, %+v", attempts, f.drops)
				}
				if want := fmt.Sprintf("method=Test.Note attempts=%d ", test.attempts); !strings.Contains(f.logs.String(), want) {
					t.Errorf("got the log\n%swant one with %s", f.logs.String(), want)
				}
			})
		})
	}
}

func TestLaterHasABound(t *testing.T) {
	for name, o := range map[string]retry.LaterOptions{"calls": {Queue: 3}, "bytes": {QueueBytes: 31}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFailback(t, o)
				f.fail(yodel.Errorf(yodel.Unavailable, "the disk is away"))
				line := "8 bytes." // 10 in JSON
				refused := 0
				for range 10 {
					err := f.client.Do(t.Context(), &yodel.Call{Method: string(note), Args: &line, Idempotent: true})
					e, ok := errors.AsType[*yodel.Error](err)
					if err == nil {
						continue
					}
					if refused++; !ok || e.ID != "YDL1401" || e.NotProcessed || !strings.Contains(e.Message, "the disk is away") {
						t.Errorf("got %v", err)
					}
				}
				f.fail(nil)
				time.Sleep(time.Minute)
				if n := strings.Count(f.noted(), "bytes"); n != 3 || refused != 7 {
					t.Errorf("%d calls were made later, and %d refused, want 3 and 7", n, refused)
				}
				f.fail(yodel.Unavailable)
				if err := f.client.Do(t.Context(), &yodel.Call{Method: string(note), Args: &line, Idempotent: true}); err != nil {
					t.Errorf("there is room again, and got %v", err)
				}
				f.fail(nil)
				time.Sleep(time.Minute)
				if n := strings.Count(f.noted(), "bytes"); n != 4 {
					t.Errorf("%d calls were made later, want 4", n)
				}
			})
		})
	}
}

// What waits when the client is closed is not lost without a word.
func TestLaterEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailback(t, retry.LaterOptions{})
		f.fail(yodel.Errorf(yodel.Unavailable, "the disk is away"))
		line := "x"
		for range 20 {
			if err := f.client.Do(t.Context(), &yodel.Call{Method: string(note), Args: &line, Idempotent: true}); err != nil {
				t.Errorf("got %v", err)
			}
		}
		time.Sleep(2 * time.Second)
		f.client.Close()
		if len(f.drops) != 20 || strings.Count(f.logs.String(), "YDL1402") != 20 {
			t.Errorf("%d of 20 calls are reported, in the log\n%s", len(f.drops), f.logs.String())
		}
		for _, d := range f.drops {
			if e, ok := errors.AsType[*yodel.Error](d.err); !ok || e.ID != "YDL1402" || e.NotProcessed {
				t.Errorf("got %v", d.err)
			}
		}
		if err := f.client.Do(t.Context(), &yodel.Call{Method: string(note), Args: &line, Idempotent: true}); err == nil {
			t.Error("a closed client takes calls")
		}
	})
}

// A thousand calls that wait are no burst when the server is back, nor while it is away.
func TestLaterIsNoStampede(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		line := "x"
		var attempts, most, open atomic.Int32
		var healthy atomic.Bool
		c := dial(t, network, nil, retry.Later(&retry.LaterOptions{Times: 1000}), func(yodel.Handler) yodel.Handler {
			return func(_ context.Context, call *yodel.Call) error {
				attempts.Add(1)
				if n := open.Add(1); n > most.Load() {
					most.Store(n)
				}
				if _, first := call.Args.(*string); !first {
					time.Sleep(time.Millisecond)
				}
				open.Add(-1)
				if !healthy.Load() {
					return yodel.Unavailable
				}
				return nil
			}
		})
		for range 1000 {
			if err := c.Do(t.Context(), &yodel.Call{Method: string(note), Args: &line, Idempotent: true}); err != nil {
				t.Error(err)
			}
		}
		attempts.Store(0)
		time.Sleep(60 * time.Second)
		if attempts.Load() > 10+60 {
			t.Errorf("there were %d attempts in a minute, want those of the reserve", attempts.Load())
		}
		healthy.Store(true)
		time.Sleep(3 * time.Minute)
		if attempts.Load() < 1000 || most.Load() > 1 {
			t.Errorf("%d attempts, and %d at once", attempts.Load(), most.Load())
		}
	})
}

// Calls that hang do not hold up others, and there is a bound on how many do so at the same time.
func TestLaterIsNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open, done atomic.Int32
		c := dial(t, mem.New(), nil, retry.Later(&retry.LaterOptions{Timeout: time.Hour, Logger: slog.New(slog.DiscardHandler)}), func(yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if _, first := call.Args.(*string); first {
					return yodel.Unavailable
				}
				if call.Tenant == "hangs" {
					open.Add(1)
					<-ctx.Done()
					open.Add(-1)
					return yodel.Unavailable
				}
				done.Add(1)
				return nil
			}
		})
		later := func(n int, tenant string) {
			for range n {
				if err := c.Do(t.Context(), &yodel.Call{Method: string(note), Args: new("x"), Tenant: tenant, Idempotent: true}); err != nil {
					t.Error(err)
				}
			}
		}
		later(3, "hangs")
		time.Sleep(time.Minute)
		later(10, "")
		time.Sleep(time.Minute)
		if open.Load() != 3 || done.Load() != 10 {
			t.Errorf("while %d calls hang, %d of 10 others were made", open.Load(), done.Load())
		}
		later(50, "hangs")
		time.Sleep(10 * time.Minute)
		if open.Load() != 16 {
			t.Errorf("%d calls are under way, want 16", open.Load())
		}
		later(10, "")
		time.Sleep(5 * time.Hour) // each hour 16 of the calls that hang make room
		if done.Load() != 20 {
			t.Errorf("%d of 10 others were made once there was room", done.Load()-10)
		}
	})
}
