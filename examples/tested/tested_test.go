// SPDX-License-Identifier: Apache-2.0

package tested_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/tested"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// region leaks

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// endregion leaks

// region service

func TestPrice(t *testing.T) {
	s := yodeltest.NewServer(t, nil)
	if err := s.Register(&tested.Shop{Prices: map[string]int{"tea": 3}}); err != nil {
		t.Fatal(err)
	}
	c := yodeltest.NewClient(t, nil, s)

	price, err := tested.Price.Call(t.Context(), c, new("tea"))
	if err != nil || *price != 3 {
		t.Errorf("tea: got %v, %v", price, err)
	}
	if _, err = tested.Price.Call(t.Context(), c, new("coffee")); !errors.Is(err, yodel.NotFound) {
		t.Errorf("coffee: got %v, want not_found", err)
	}
}

// endregion service

// region client

func TestTotalFailsWithTheShop(t *testing.T) {
	s := yodeltest.NewServer(t, nil)
	tested.Price.Handle(s.Server, func(context.Context, *string) (*int, error) {
		return nil, yodel.Errorf(yodel.Internal, "the database is gone")
	})
	c := yodeltest.NewClient(t, nil, s)

	if _, err := tested.Total(t.Context(), c, "tea", "milk"); !errors.Is(err, yodel.Internal) {
		t.Errorf("got %v, want internal", err)
	}
}

// endregion client

// region time

func TestTotalEndsWithItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, nil)
		tested.Price.Handle(s.Server, func(ctx context.Context, _ *string) (*int, error) {
			<-ctx.Done() // the deadline of the caller reaches the handler
			return nil, ctx.Err()
		})
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Timeout: time.Hour}, s)

		began := time.Now()
		_, err := tested.Total(t.Context(), c, "tea")
		if !errors.Is(err, yodel.DeadlineExceeded) || time.Since(began) != time.Hour {
			t.Errorf("got %v after %v, want deadline_exceeded after an hour", err, time.Since(began))
		}
	})
}

// endregion time

// region failover

func TestTotalUsesAnotherInstance(t *testing.T) {
	failing, good := yodeltest.NewServer(t, nil), yodeltest.NewServer(t, nil)
	tested.Price.Handle(failing.Server, func(context.Context, *string) (*int, error) {
		return nil, yodel.Errorf(yodel.Unavailable, "the database is gone")
	})
	if err := good.Register(&tested.Shop{Prices: map[string]int{"tea": 3, "milk": 2}}); err != nil {
		t.Fatal(err)
	}
	c := yodeltest.NewClient(t, &yodel.ClientOptions{
		Middleware: []yodel.Middleware{retry.Times(2)},
		Idempotent: []string{string(tested.Price)},
	}, failing, good)

	total, err := tested.Total(t.Context(), c, "tea", "milk", "coffee")
	if err != nil || total != 5 {
		t.Errorf("got %v, %v, want 5", total, err)
	}
}

// endregion failover
