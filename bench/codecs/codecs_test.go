// SPDX-License-Identifier: Apache-2.0

package codecs_test

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/smallnest/rpcx/log"
)

func TestMain(m *testing.M) {
	log.SetDummyLogger()
	registerCodecs()
	os.Exit(m.Run())
}

func TestEveryReplyIsRight(t *testing.T) {
	for _, r := range rows() {
		for _, f := range r.frameworks {
			t.Run(r.work+"/"+r.codec+"/"+f.name, func(t *testing.T) {
				call := f.start(t)
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						for range 10 {
							if err := call(t.Context()); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// Benchmark is each row with one caller and with a hundred. Frameworks with the same codec follow
// each other, so that they find the machine alike.
func Benchmark(b *testing.B) {
	for _, r := range rows() {
		for _, callers := range []int{1, 100} {
			for _, f := range r.frameworks {
				b.Run(fmt.Sprintf("work=%s/codec=%s/callers=%d/framework=%s", r.work, r.codec, callers, f.name), func(b *testing.B) {
					benchmark(b, f, callers)
				})
			}
		}
	}
}

// warmUp is how many calls each caller makes before it is measured.
const warmUp = 200

func benchmark(b *testing.B, f framework, callers int) {
	b.ReportAllocs()
	call, ctx := f.start(b), b.Context()
	if err := each(callers, func(int) int { return warmUp }, func() error { return call(ctx) }); err != nil {
		b.Fatal(err)
	}
	runtime.GC() // what others left is not this one's
	before := processorTime(b)
	b.ResetTimer()
	share := func(i int) int { return b.N/callers + btoi(i < b.N%callers) }
	if err := each(callers, share, func() error { return call(ctx) }); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
}

func btoi(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// each runs call on as many goroutines as there are callers, on the i-th of them times(i) times.
func each(callers int, times func(i int) int, call func() error) error {
	errs := make(chan error, callers)
	for i := range callers {
		go func() {
			for range times(i) {
				if err := call(); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var first error
	for range callers {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// processorTime is what the process has used, client and server together: unlike the time that has
// passed, it hardly depends on what else the machine does.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
