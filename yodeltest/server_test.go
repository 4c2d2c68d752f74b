// SPDX-License-Identifier: Apache-2.0

package yodeltest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/yodeltest"
)

const where yodel.Method[struct{}, string] = "Where"

func serverNamed(t *testing.T, name string) *yodeltest.Server {
	t.Helper()
	s := yodeltest.NewServer(t, nil)
	where.Handle(s.Server, func(ctx context.Context, _ *struct{}) (*string, error) {
		select {
		case <-time.After(time.Hour): // of fake time
		case <-ctx.Done():
		}
		return &name, nil
	})
	return s
}

func TestServersInMemoryWorkInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := serverNamed(t, "a"), serverNamed(t, "b")
		c := yodeltest.NewClient(t, nil, a, b)
		began, seen := time.Now(), map[string]bool{}
		for range 2 {
			name, err := where.Call(t.Context(), c, &struct{}{})
			if err != nil {
				t.Fatal(err)
			}
			seen[*name] = true
		}
		if took := time.Since(began); took < 2*time.Hour || len(seen) != 2 {
			t.Errorf("got %v after %v, want both servers after two hours", seen, took)
		}
		if err := a.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if name, err := where.Call(t.Context(), c, &struct{}{}); err != nil || *name != "b" {
				t.Errorf("with one server down: %v", err)
			}
		}
	})
}
