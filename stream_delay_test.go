// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/inspect"
)

// A large message, in a call or in a stream, does not hold up the small calls on its connection:
// they get in between its pieces.
func TestLargeMessagesDoNotDelaySmallCalls(t *testing.T) {
	const large, bound = 16<<20 - 1024, 10 * time.Millisecond // as much as the limits allow
	const (
		up   yodel.Method[[]byte, []byte] = "Large.Up"
		down yodel.Method[[]byte, []byte] = "Large.Down"
		feed yodel.Feed[[]byte, []byte]   = "Large.Feed"
		push yodel.Upload[[]byte, []byte] = "Large.Push"
	)
	body, none := randomBytes(large), []byte{}
	s := yodel.NewServer(nil)
	up.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) {
		if len(*in) != large {
			return nil, yodel.Errorf(yodel.Internal, "got %d bytes", len(*in))
		}
		return &none, nil
	})
	down.Handle(s, func(context.Context, *[]byte) (*[]byte, error) { return &body, nil })
	feed.Handle(s, func(_ context.Context, _ *[]byte, send yodel.Send[[]byte]) error {
		for {
			if err := send(&body); err != nil {
				return err
			}
		}
	})
	push.Handle(s, func(_ context.Context, recv yodel.Recv[[]byte]) (*[]byte, error) {
		for msg, err := range recv {
			if err != nil {
				return nil, err
			}
			if len(*msg) != large {
				return nil, yodel.Errorf(yodel.Internal, "got %d bytes", len(*msg))
			}
		}
		return &none, nil
	})
	addr := serve(t, s)
	for name, load := range map[string]func(ctx context.Context, c *yodel.Client, moved func()) error{
		"a call, up": func(ctx context.Context, c *yodel.Client, moved func()) error {
			_, err := up.Call(ctx, c, &body)
			moved()
			return err
		},
		"a call, down": func(ctx context.Context, c *yodel.Client, moved func()) error {
			_, err := down.Call(ctx, c, &none)
			moved()
			return err
		},
		"a feed": func(ctx context.Context, c *yodel.Client, moved func()) error {
			for _, err := range feed.Call(ctx, c, &none) {
				if err != nil {
					return err
				}
				moved()
			}
			return nil
		},
		"an upload": func(ctx context.Context, c *yodel.Client, moved func()) error {
			_, err := push.Call(ctx, c, func(send yodel.Send[[]byte]) error {
				for {
					if err := send(&body); err != nil {
						return err
					}
					moved()
				}
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, apart := newClient(t, &yodel.ClientOptions{Codec: raw.Codec}, addr), newClient(t, nil, addr)
			small := func(c *yodel.Client) time.Duration {
				began := time.Now()
				must(t, c.Do(t.Context(), &yodel.Call{Method: string(inspect.Ping), Args: &Empty{}, Codec: yodel.JSON}))
				return time.Since(began)
			}
			small(c)
			small(apart)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n, moving := 0, make(chan struct{})
			begun := sync.OnceFunc(func() { close(moving) })
			var wg sync.WaitGroup
			wg.Go(func() {
				for ctx.Err() == nil {
					err := load(ctx, c, func() { n++; begun() })
					if err != nil && ctx.Err() == nil {
						t.Error(err)
						begun()
						return
					}
				}
			})
			receive(t, moving, "a large message moves")
			calls := 2000
			if raceEnabled {
				calls = 200
			}
			took, alone := make([]time.Duration, calls), make([]time.Duration, calls)
			began := time.Now()
			for i := range took {
				took[i], alone[i] = small(c), small(apart)
			}
			lasted := time.Since(began)
			cancel()
			wg.Wait()
			slices.Sort(took)
			slices.Sort(alone)
			t.Logf("%d small calls beside %d large messages in %v: median %v, 99th percentile %v, at worst %v",
				calls, n, lasted, took[calls/2], took[calls*99/100], took[calls-1])
			limit := bound
			if raceEnabled {
				limit *= 10
			}
			// On a machine of its own the worst stays below the bound. One that does something else
			// delays a few, and those on a connection of their own, too.
			if most, other := took[calls*95/100], alone[calls*95/100]; most > limit+3*other {
				t.Errorf("one small call in 20 took %v and more, and %v on a connection of its own", most, other)
			}
		})
	}
}
