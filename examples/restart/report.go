// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Books say how often the processes have carried out each job, and dealt with each item.
type books struct {
	mu    sync.Mutex
	jobs  []uint8   // by number
	items [][]uint8 // by stream and number
}

func newBooks(streams int) *books { return &books{items: make([][]uint8, streams)} }

func (b *books) job(id int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	count(&b.jobs, id)
}

func (b *books) item(stream, seq int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	count(&b.items[stream], seq)
}

func count(times *[]uint8, n int) {
	for len(*times) <= n {
		*times = append(*times, 0)
	}
	(*times)[n]++
}

// An audit compares the books with what callers were told.
type audit struct {
	lost, twice int
	faults      []error
}

// compare wants each thing from 1 to n to have been done once. Failed says why the caller of one
// was told otherwise.
func (a *audit) compare(what string, times []uint8, n int, failed func(id int) error) {
	for id := 1; id <= n || id < len(times); id++ {
		done := 0
		if id < len(times) {
			done = int(times[id])
		}
		err := failed(id)
		switch {
		case err == nil && id > n:
			err = errors.New("it was done, and its caller never knew")
		case err == nil && done == 0:
			err = errors.New("it was acknowledged, and not done")
		}
		if err != nil {
			a.lost++
			a.faults = append(a.faults, fmt.Errorf("%s %d: %w", what, id, err))
		}
		if done > 1 {
			a.twice++
			a.faults = append(a.faults, fmt.Errorf("%s %d: it was done %d times", what, id, done))
		}
	}
}

// stream compares what is known of a stream on either side. The items of a feed are made by
// servers, and so only those are known that have come.
func (a *audit) stream(s *stream, times []uint8) {
	if s.err != nil {
		a.faults = append(a.faults, fmt.Errorf("stream %d, %s: %w", s.id, s.kind, s.err))
	}
	a.faults = append(a.faults, s.faults...)
	a.compare(fmt.Sprintf("stream %d, %s: item", s.id, s.kind), times, max(s.made, s.done), func(id int) error {
		if id > s.done && id <= s.made {
			return errors.New("it was not acknowledged")
		}
		return nil
	})
}

// report prints what became of calls and items. It returns an error unless each was dealt with
// once, and nothing else went wrong: failed is why the show ended early.
func report(l *load, service []*instance, b *books, failed error) error {
	a := new(audit)
	if failed != nil {
		a.faults = append(a.faults, failed)
	}
	a.compare("job", b.jobs, int(l.calls.Load()), func(id int) error { return l.errs[id] })
	for _, s := range l.streams {
		a.stream(s, b.items[s.id])
	}
	for _, in := range service {
		if err := in.row.err; err != nil {
			a.faults = append(a.faults, in.failed("end well", err))
		}
	}

	fmt.Printf("\n%-16s %8d   the slowest took %v\n", "calls", l.calls.Load(), time.Duration(l.slowest.Load()).Round(time.Millisecond))
	fmt.Printf("%-16s %8d   in %d streams, which were opened %d times\n", "stream messages", l.messages.Load(), len(l.streams), l.opened.Load())
	fmt.Printf("%-16s %8d   in %v\n", "restarts", l.restarts.Load(), time.Since(l.began).Round(100*time.Millisecond))
	fmt.Printf("%-16s %8d\n", "executed twice", a.twice)
	a.print(service)
	fmt.Printf("\n%d lost\n", a.lost)
	if len(a.faults) > 0 {
		return errors.New("see above")
	}
	return nil
}

// print prints the faults, and what the processes have to say if there are any.
func (a *audit) print(service []*instance) {
	const shown = 10
	for _, err := range a.faults[:min(len(a.faults), shown)] {
		fmt.Println("  " + err.Error())
	}
	if len(a.faults) > shown {
		fmt.Printf("  and %d others\n", len(a.faults)-shown)
	}
	if len(a.faults) > 0 {
		for _, in := range service {
			fmt.Print(in.stderr.String())
		}
	}
}
