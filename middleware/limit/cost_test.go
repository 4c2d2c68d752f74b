// SPDX-License-Identifier: Apache-2.0

//go:build unix

package limit_test

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// BenchmarkServer is what a limiter costs a short method, in processor time of both sides: none,
// one that is never reached, and one that is reached all the time, because four connections want to
// run a call each, and one or two may.
func BenchmarkServer(b *testing.B) {
	for _, test := range []struct {
		name string
		m    []yodel.Middleware
	}{
		{"none", nil},
		{"fixed, far", []yodel.Middleware{limit.Concurrency(1000)}},
		{"adaptive, far", []yodel.Middleware{limit.Adaptive(&limit.Options{Initial: 1000})}},
		{"fixed, near", []yodel.Middleware{limit.With(&limit.Options{Limit: 1, Queue: 1000, Target: time.Second})}},
	} {
		b.Run(test.name, func(b *testing.B) {
			const clients, callers = 4, 25
			s := yodeltest.NewServer(b, limited(test.m...))
			work.Handle(s.Server, func(_ context.Context, in *struct{}) (*struct{}, error) { return in, nil })
			b.ReportAllocs()
			var wg sync.WaitGroup
			began := processorTime(b)
			for range clients {
				c := yodeltest.NewClient(b, nil, s)
				for range callers {
					wg.Go(func() {
						for range b.N/clients/callers + 1 {
							if err := call(c); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
			}
			wg.Wait()
			b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
