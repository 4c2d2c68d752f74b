// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// The benchmarks report writes for each call beside the time: cw of the client, sw of the server.

func benchmarked(b *testing.B) (c, srv *mux.Conn) {
	b.Helper()
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	c, srv = s.overTCP(b)
	mustEcho(b, c, echo, "first")
	return c, srv
}

func reportWrites(b *testing.B, c, srv *mux.Conn) {
	b.Helper()
	b.ReportMetric(float64(c.Counters().Writes)/float64(b.N), "cw/op")
	b.ReportMetric(float64(srv.Counters().Writes)/float64(b.N), "sw/op")
}

func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 2, 10, 100, 1000} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			c, srv := benchmarked(b)
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					out := &mux.Out{Method: echo, Body: make([]byte, 128)}
					for range b.N / callers {
						a, err := c.Call(context.Background(), out)
						if err != nil {
							b.Error(err)
							return
						}
						a.Release()
					}
				})
			}
			wg.Wait()
			reportWrites(b, c, srv)
		})
	}
}

func BenchmarkStart(b *testing.B) {
	const window = 2000
	c, srv := benchmarked(b)
	tokens := make(chan struct{}, window)
	for range window {
		tokens <- struct{}{}
	}
	back := completed(func(_ *mux.Answer, err error) {
		if err != nil {
			b.Error(err)
		}
		tokens <- struct{}{}
	})
	out := &mux.Out{Method: echo, Body: make([]byte, 128)}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		<-tokens
		if err := c.Start(context.Background(), out, back); err != nil {
			b.Fatal(err)
		}
	}
	for range window {
		<-tokens
	}
	reportWrites(b, c, srv)
}
