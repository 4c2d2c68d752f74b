// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// TestSearchesForSimilarNamesAreBounded calls methods that a server does not have, each under a
// name of its own. The first calls are told a similar name. Then the server refuses without a
// search, and suggests again at a bounded rate.
func TestSearchesForSimilarNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
		must(t, s.Handle("Shop.Order", func(int) int { return 1 }))
		l, err := network.Listen("shop")
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, l) }()
		c := yodel.NewClient(yodel.Static("shop"), &yodel.ClientOptions{Transport: network})
		calls := 0
		suggested := func(n int) (suggestions int) {
			for range n {
				calls++
				err := c.Call(t.Context(), fmt.Sprintf("Shop.Orde%d", calls), yodel.Values{1}, nil)
				e := wantError(t, err, yodel.Unimplemented, "YDL2002")
				if strings.HasSuffix(e.Message, `did you mean "Shop.Order"?`) {
					suggestions++
				}
			}
			return suggestions
		}
		if got := suggested(500); got != 50 {
			t.Errorf("%d of 500 calls at once were told a similar name, want 50", got)
		}
		time.Sleep(time.Second)
		if got := suggested(500); got != 10 {
			t.Errorf("%d of 500 calls were told a similar name a second later, want 10", got)
		}
		c.Close()
		cancel()
		must(t, <-ended)
	})
}

// BenchmarkUnknownMethod measures the refusal of a call of an unknown method by a server of 1000.
func BenchmarkUnknownMethod(b *testing.B) {
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	for i := range 1000 {
		must(b, s.Handle(fmt.Sprintf("Service%d.SomeMethodWithALongName%d", i/10, i), func(int) int { return 1 }))
	}
	c := connect(b, s, nil)
	for i := 0; b.Loop(); i++ {
		err := c.Call(b.Context(), fmt.Sprintf("Service5.SomeMethodWithALongName%d", 5000+i%500), yodel.Values{1}, nil)
		wantError(b, err, yodel.Unimplemented, "YDL2002")
	}
}
