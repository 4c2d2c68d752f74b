// SPDX-License-Identifier: Apache-2.0

package overload_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A server with the recommended options that gets 20 times what it can serve, from its first call
// on, serves 80 % of what it can from the fourth second on. Time is that of a bubble, so other work
// on the machine does not matter.
func TestRecommendedServesFromTheStart(t *testing.T) {
	const (
		places   = 4
		takes    = 10 * time.Millisecond
		capacity = float64(places) / 0.010 // calls in a second
		timeout  = 500 * time.Millisecond
		lasts    = 10 // seconds
	)
	for name, honours := range map[string]bool{"handlers end with their contexts": true, "handlers do not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quiet := slog.New(slog.DiscardHandler)
				s := yodeltest.NewServer(t, recommended.Server(&yodel.ServerOptions{Logger: quiet}))
				free := make(chan struct{}, places)
				hold.Handle(s.Server, func(ctx context.Context, in *struct{}) (*struct{}, error) {
					var ended <-chan struct{}
					if honours {
						ended = ctx.Done()
					}
					select {
					case free <- struct{}{}:
					case <-ended:
						return nil, ctx.Err()
					}
					time.Sleep(takes)
					<-free
					return in, nil
				})
				c := yodeltest.NewClient(t, recommended.Client(&yodel.ClientOptions{Timeout: timeout, Logger: quiet}), s)
				var mu sync.Mutex
				var served [lasts + 2]int // by second
				began := time.Now()
				var calls sync.WaitGroup
				const every = 5 * time.Millisecond
				for time.Since(began) < lasts*time.Second {
					for range int(20 * capacity * every.Seconds()) {
						calls.Go(func() {
							if _, err := hold.Call(context.Background(), c, &struct{}{}); err == nil {
								mu.Lock()
								served[int(time.Since(began).Seconds())]++
								mu.Unlock()
							}
						})
					}
					time.Sleep(every)
				}
				calls.Wait()
				t.Logf("served in each second, of %v: %v", capacity, served[:lasts])
				for second, n := range served[:lasts] {
					if second >= 3 && float64(n) < 0.8*capacity {
						t.Errorf("%d calls were served in second %d, want 80 %% of %v", n, second, capacity)
					}
				}
			})
		})
	}
}
