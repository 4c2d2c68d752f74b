// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// tolerance is how much larger the 99th percentile under a fault may be than that of the windows
// before and after it, on a machine whose healthy windows are all alike.
const tolerance = 1.10

// busy is the largest factor by which latencies are judged. With the recommended chain left out a
// slow server makes the 99th percentile about ten times larger.
const busy = 5

// report prints how the calls went in each window, and returns what is wrong.
func report(ctx context.Context, l *load, windows []window) error {
	var faults []error
	for _, c := range l.calls {
		if c.err != nil {
			faults = append(faults, c.err)
		}
	}
	failed := len(faults)
	faults = faults[:min(failed, 5)] // the others are like them

	fmt.Printf("\n%-8s  %7s  %8s  %8s  %8s  %14s  %s\n", "", "calls", "p50", "p99", "longest", "the bad server", "p99 / well")
	p99 := make([]time.Duration, len(windows))
	allowed := tolerance * spread(l, windows)
	for i, w := range windows {
		took, byBad := l.took(w)
		if len(took) == 0 {
			continue // it was interrupted
		}
		p99[i] = l.p99(w)
		name := "well"
		if w.fault != nil {
			name = w.fault.name
		}
		fmt.Printf("%-8s  %7d  %8v  %8v  %8v", name, len(took), short(quantile(took, 0.5)), short(p99[i]), short(took[len(took)-1]))
		if w.fault != nil && i+1 < len(windows) {
			if after := l.p99(windows[i+1]); after > 0 {
				ratio := 2 * float64(p99[i]) / float64(p99[i-1]+after)
				fmt.Printf("  %13.1f%%  %10.2f", 100*float64(byBad)/float64(len(took)), ratio)
				if ratio > allowed && allowed <= busy {
					faults = append(faults, fmt.Errorf("with a server that is %s, the 99th percentile is %.2f times that of the healthy windows before and after it; allowed is %.2f", name, ratio, allowed))
				}
			}
		}
		fmt.Println()
	}
	fmt.Printf("\nallowed is %.2f: %.2f times how far the healthy windows of this run differ from each other\n", allowed, tolerance)
	if allowed > busy {
		fmt.Println("this machine is too busy for a judgement of the latencies")
	}
	fmt.Printf("%d calls, %d failed\n", len(l.calls), failed)
	if ctx.Err() != nil {
		fmt.Println("interrupted: nothing is proved")
	}
	return errors.Join(faults...)
}

// spread returns the largest 99th percentile of the healthy windows, divided by the smallest. It is
// how much the machine itself changes the figure: other programs that run meanwhile make it larger.
func spread(l *load, windows []window) float64 {
	var least, most time.Duration
	for _, w := range windows {
		if w.fault != nil {
			continue
		}
		if p99 := l.p99(w); p99 > 0 {
			most = max(most, p99)
			if least == 0 || p99 < least {
				least = p99
			}
		}
	}
	if least == 0 {
		return 1 // the run was interrupted before the first healthy window
	}
	return float64(most) / float64(least)
}

// parts is into how many parts p99 divides a window.
const parts = 8

// p99 returns the median of the 99th percentiles of the parts of a window, and 0 for a window
// without calls. When the machine stalls for some milliseconds, the calls that are open are the
// slowest hundredth of the window, but of one part only; a bad server that gets calls gets them in
// every part.
func (l *load) p99(w window) time.Duration {
	length := w.end.Sub(w.began) / parts
	var all []time.Duration
	part := window{end: w.began}
	for range parts {
		part.began, part.end = part.end, part.end.Add(length)
		if took, _ := l.took(part); len(took) > 0 {
			all = append(all, quantile(took, 0.99))
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// quantile returns the latency that a share q of the calls did not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
