// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// report prints what became of the calls. It returns an error unless each had the outcome that it
// has to have.
func report(l *load, s *shop) error {
	failures := shares(l.outcomes, s.steps)
	var took []time.Duration
	for _, o := range l.outcomes {
		took = append(took, o.took)
		if o.err != nil {
			failures = append(failures, fmt.Errorf("order %d: %w", o.id, o.err))
		}
	}
	failures = append(failures, audit(l.outcomes, s.instances)...)
	slices.Sort(took)
	calls := int64(len(l.outcomes))

	fmt.Printf("\n%-14s %7d\n", "calls", calls)
	for _, in := range s.instances {
		fmt.Printf("  %-12s %7d   %s\n", in.name, l.answered[in.name].Load(), in.fate(l.began))
	}
	fmt.Printf("%-14s %7d   by the client: certainly not executed before\n", "resent", l.attempts.Load()-l.tries.Load())
	fmt.Printf("%-14s %7d   by the retry middleware: perhaps executed before, and idempotent\n", "retried", l.tries.Load()-calls)
	fmt.Printf("%-14s %7v\n%-14s %7v\n", "p50", quantile(took, 0.50), "p99", quantile(took, 0.99))
	if len(failures) == 0 {
		fmt.Println("What was acknowledged was executed, no order of Shop.Buy twice, and each instance had its share.")
	} else {
		printErrors(failures)
		for _, in := range s.instances {
			fmt.Print(in.Stderr.String())
		}
	}
	fmt.Printf("\n%d failed\n", len(failures))
	if len(failures) > 0 {
		return errors.New("see above")
	}
	return nil
}

// shares prints how the calls of each step were shared out, beside how they should have been, and
// returns what is too far off.
func shares(outcomes []outcome, steps []step) (faults []error) {
	fmt.Printf("\n%-14s %7s %7s", "step", "known", "calls")
	for _, name := range names {
		fmt.Printf("  %12s", name)
	}
	fmt.Println()
	for _, st := range steps {
		by, calls, all := make(map[string]int), 0, 0
		for _, o := range outcomes {
			if o.err == nil && !o.began.Before(st.began) && o.began.Before(st.end) {
				by[o.by]++
				calls++
			}
		}
		for _, share := range st.shares {
			all += share
		}
		fmt.Printf("%-14s %7v %7d", st.what, st.took.Round(time.Millisecond), calls)
		for _, name := range names {
			want := float64(st.shares[name]) / float64(max(all, 1))
			got := float64(by[name]) / float64(max(calls, 1))
			cell := "-"
			if want > 0 || got > 0 {
				cell = fmt.Sprintf("%.1f%% of %.0f%%", 100*got, 100*want)
			}
			fmt.Printf("  %12s", cell)
			if deviation := math.Sqrt(want * (1 - want) / float64(max(calls, 1))); math.Abs(got-want) > 5*deviation {
				faults = append(faults, fmt.Errorf("%s: %s had %.1f%% of %d calls, not %.1f%%", st.what, name, 100*got, calls, 100*want))
			}
		}
		fmt.Println()
	}
	return faults
}

// audit compares what callers were told with what the instances have executed.
func audit(outcomes []outcome, instances []*instance) (faults []error) {
	made := make(map[int]bool, len(outcomes))
	for _, o := range outcomes {
		if made[o.id] {
			faults = append(faults, fmt.Errorf("two calls were order %d", o.id))
		}
		made[o.id] = true
		times := 0
		for _, in := range instances {
			times += in.executed[o.id]
			if o.by == in.name && in.executed[o.id] == 0 {
				faults = append(faults, fmt.Errorf("order %d was acknowledged by %s, which has not executed it", o.id, in.name))
			}
		}
		if times > 1 && o.method == Buy {
			faults = append(faults, fmt.Errorf("order %d was executed %d times", o.id, times))
		}
	}
	for _, in := range instances {
		for id := range in.executed {
			if !made[id] {
				faults = append(faults, fmt.Errorf("%s executed order %d, which nobody has made", in.name, id))
			}
		}
		if in.Err != nil && !in.Killed {
			faults = append(faults, fmt.Errorf("instance %s ended with %w", in.name, in.Err))
		}
	}
	return faults
}

// fate says how the instance ended.
func (in *instance) fate(began time.Time) string {
	at, took := in.Told.Sub(began).Seconds(), in.Ended.Sub(in.Told).Round(time.Millisecond)
	if in.Killed {
		return fmt.Sprintf("killed after %.1fs", at)
	}
	return fmt.Sprintf("shut down after %.1fs, which took %v", at, took)
}

// printErrors prints errors, those that read alike once.
func printErrors(errs []error) {
	const shown = 5
	count := make(map[string]int)
	var texts []string
	for _, err := range errs {
		if count[err.Error()]++; count[err.Error()] == 1 {
			texts = append(texts, err.Error())
		}
	}
	for _, text := range texts[:min(len(texts), shown)] {
		fmt.Printf("  %d × %s\n", count[text], text)
	}
	if len(texts) > shown {
		fmt.Printf("  and %d others\n", len(texts)-shown)
	}
}

// quantile returns the duration that a share q of the sorted ones does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))].Round(100 * time.Microsecond)
}
