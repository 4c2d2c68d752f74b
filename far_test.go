// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
)

// setLargest sets a field of a struct of options to the largest value of its type. It returns false
// for a field that is not exported, or is neither a number nor a duration.
func setLargest(field reflect.Value) bool {
	if kind := field.Kind(); !field.CanSet() || kind != reflect.Int && kind != reflect.Int64 { // durations too
		return false
	}
	field.SetInt(math.MaxInt64)
	return true
}

// A farCase is a client and a server of which something is as large, or as late, as can be.
type farCase struct {
	name   string
	client yodel.ClientOptions
	server yodel.ServerOptions
	ctx    func() (context.Context, context.CancelFunc)
	call   yodel.Call
}

// eachOption returns a case for every number and duration of the options, and of Limits.
func eachOption() (cases []farCase) {
	options := func(of reflect.Type, in func(c *farCase) reflect.Value) {
		for i := range of.NumField() {
			var c farCase
			if setLargest(in(&c).Field(i)) {
				c.name = of.String() + "." + of.Field(i).Name
				cases = append(cases, c)
			}
		}
	}
	options(reflect.TypeFor[yodel.ClientOptions](), func(c *farCase) reflect.Value { return reflect.ValueOf(&c.client).Elem() })
	options(reflect.TypeFor[yodel.ServerOptions](), func(c *farCase) reflect.Value { return reflect.ValueOf(&c.server).Elem() })
	limits := reflect.TypeFor[yodel.Limits]()
	for i := range limits.NumField() {
		var c farCase
		if setLargest(reflect.ValueOf(&c.client.Limits).Elem().Field(i)) {
			c.server.Limits = c.client.Limits
			c.name = limits.String() + "." + limits.Field(i).Name
			cases = append(cases, c)
		}
	}
	return cases
}

func farDeadlines() (cases []farCase) {
	for _, year := range []int{2170, 2300, 2400, 9999} {
		at := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		cases = append(cases, farCase{name: "Call.Deadline in " + at.Format("2006"), call: yodel.Call{Deadline: at}},
			farCase{name: "a context that ends in " + at.Format("2006"), ctx: func() (context.Context, context.CancelFunc) {
				return context.WithDeadline(context.Background(), at)
			}})
	}
	endless := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), math.MaxInt64)
	}
	middleware := func(m yodel.Middleware) yodel.ClientOptions {
		return yodel.ClientOptions{Middleware: []yodel.Middleware{m}, Idempotent: []string{"Echo"}}
	}
	return append(cases, farCase{name: "context.WithTimeout", ctx: endless},
		farCase{name: "timeout.After", client: middleware(timeout.After(math.MaxInt64))},
		farCase{name: "timeout.Streams", client: middleware(timeout.Streams(math.MaxInt64))},
		farCase{name: "timeout.After on the server", server: yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.After(math.MaxInt64)}}},
		farCase{name: "retry.Options", client: middleware(retry.With(&retry.Options{Times: math.MaxInt, Backoff: 1, MaxBackoff: math.MaxInt64}))},
		farCase{name: "cache.Options", client: middleware(cache.With(&cache.Options{
			Methods: []string{"Echo"}, For: math.MaxInt64, Stale: math.MaxInt64,
		}))})
}

// The largest values of options, and times that are as far away as can be, mean that there is no
// limit: calls succeed, and those with a deadline keep it.
func TestFarTimesAndLargeLimitsMeanNone(t *testing.T) {
	t.Parallel()
	for _, test := range append(eachOption(), farDeadlines()...) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, &test.server)
			must(t, s.Handle("Echo", func(_ context.Context, in *string) (*string, error) { return in, nil }))
			must(t, s.Handle("Hang", func(ctx context.Context, _ *string) (*string, error) {
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Second): // so that the test ends where no deadline is kept
				}
				return nil, ctx.Err()
			}))
			c := newClient(t, &test.client, serve(t, s))
			ctx, cancel := context.WithCancel(context.Background())
			if test.ctx != nil {
				ctx, cancel = test.ctx()
			}
			defer cancel()
			for range 20 {
				in, out := "in", ""
				call := test.call
				call.Method, call.Args, call.Reply = "Echo", &in, &out
				if err := c.Do(ctx, &call); err != nil || out != in {
					t.Fatalf("got %q, %v", out, err)
				}
			}
			began := time.Now()
			in := "in"
			err := c.Do(ctx, &yodel.Call{Method: "Hang", Args: &in, Deadline: began.Add(50 * time.Millisecond)})
			if took := time.Since(began); yodel.CodeOf(err) != yodel.DeadlineExceeded || took > 4*time.Second {
				t.Errorf("a call with a deadline of 50 ms took %v: %v", took, err)
			}
		})
	}
}
