// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// report prints what became of the calls. It returns an error unless each had an outcome that it
// may have.
func report(l *load, shop []*instance) error {
	var took []time.Duration
	var interrupted, failures []error
	for _, o := range l.outcomes {
		took = append(took, o.took)
		switch {
		case o.err == nil:
		case wasInterrupted(o, shop):
			interrupted = append(interrupted, o.err)
		default:
			failures = append(failures, fmt.Errorf("order %d: %w", o.id, o.err))
		}
	}
	failures = append(failures, audit(l.outcomes, shop)...)
	slices.Sort(took)
	calls := int64(len(l.outcomes))

	fmt.Printf("\n%-12s %7d\n", "calls", calls)
	for _, in := range shop {
		fmt.Printf("  %-10s %7d   %s\n", in.name, l.answered[in.name].Load(), in.fate(l.began))
	}
	fmt.Printf("%-12s %7d   by the client: certainly not executed before\n", "resent", l.attempts.Load()-l.tries.Load())
	fmt.Printf("%-12s %7d   by the retry middleware: perhaps executed before, and idempotent\n", "retried", l.tries.Load()-calls)
	fmt.Printf("%-12s %7d   perhaps executed by the process that was killed, and not idempotent\n", "interrupted", len(interrupted))
	printErrors(interrupted)
	fmt.Printf("%-12s %7v\n%-12s %7v\n", "p50", quantile(took, 0.50), "p99", quantile(took, 0.99))
	if len(failures) == 0 {
		fmt.Println("What was acknowledged was executed, and no order of Shop.Buy twice.")
	} else {
		printErrors(failures)
		for _, in := range shop {
			fmt.Print(in.Stderr.String())
		}
	}
	fmt.Printf("\n%d failed\n", len(failures))
	if len(failures) > 0 {
		return errors.New("see above")
	}
	return nil
}

// wasInterrupted reports whether a call failed as it has to: it was lost with the process that was
// killed, might have been executed by it, and must not be executed twice.
func wasInterrupted(o outcome, shop []*instance) bool {
	var r *introspect.CallReport
	if o.method != Buy || yodel.NotProcessed(o.err) || !errors.Is(o.err, yodel.Unavailable) || !errors.As(o.err, &r) || len(r.Attempts) == 0 {
		return false
	}
	last := r.Attempts[len(r.Attempts)-1]
	return slices.ContainsFunc(shop, func(in *instance) bool { return in.Killed && in.addr == last.Addr })
}

// audit compares what callers were told with what the instances have executed.
func audit(outcomes []outcome, shop []*instance) (faults []error) {
	for _, o := range outcomes {
		times := 0
		for _, in := range shop {
			times += in.executed[o.id]
			if o.by == in.name && in.executed[o.id] == 0 {
				faults = append(faults, fmt.Errorf("order %d was acknowledged by %s, which has not executed it", o.id, in.name))
			}
		}
		if times > 1 && o.method == Buy {
			faults = append(faults, fmt.Errorf("order %d was executed %d times", o.id, times))
		}
	}
	for _, in := range shop {
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
