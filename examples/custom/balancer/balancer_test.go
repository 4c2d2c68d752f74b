// SPDX-License-Identifier: Apache-2.0

package balancer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/custom/balancer"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// region test

func TestTwoChoices(t *testing.T) { yodeltest.TestBalancer(t, balancer.TwoChoices) }

// endregion test

func TestTwoChoicesPicksTheIdlerEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait yodel.Method[bool, int] = "Shop.Wait"
		servers := make([]*yodeltest.Server, 2)
		for i := range servers {
			servers[i] = yodeltest.NewServer(t, nil)
			wait.Handle(servers[i].Server, func(_ context.Context, hold *bool) (*int, error) {
				if *hold {
					time.Sleep(time.Hour)
				}
				return &i, nil
			})
		}
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Balancer: balancer.TwoChoices}, servers...)
		if _, err := wait.Call(t.Context(), c, new(false)); err != nil { // the client connects
			t.Fatal(err)
		}
		synctest.Wait()

		held := wait.Go(t.Context(), c, new(true))
		synctest.Wait()
		idle := map[int]int{}
		for range 20 {
			i, err := wait.Call(t.Context(), c, new(false))
			if err != nil {
				t.Fatal(err)
			}
			idle[*i]++
		}
		busy, err := held.Get()
		if err != nil {
			t.Fatal(err)
		}
		if idle[*busy] > 0 {
			t.Errorf("while server %d was busy, the servers got these calls: %v", *busy, idle)
		}
	})
}
