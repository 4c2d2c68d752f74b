// SPDX-License-Identifier: Apache-2.0

package settle_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/settle"
)

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestACountTellsWhenNothingRuns(t *testing.T) {
	var c settle.Count
	if !closed(c.Zero()) {
		t.Error("something runs before anything has begun")
	}
	c.Begin()
	c.Begin()
	first, second := c.Zero(), c.Zero()
	c.End()
	if closed(first) || closed(second) {
		t.Error("nothing runs, although one does")
	}
	if c.End(); !closed(first) || !closed(second) {
		t.Error("something runs, although all have ended")
	}
	c.Begin()
	if closed(c.Zero()) {
		t.Error("what has begun later does not count")
	}
	c.End()
}

// A goroutine that waits is told, whenever the others end.
func TestTheLastEndIsTold(t *testing.T) {
	for range 1000 {
		var c settle.Count
		var all sync.WaitGroup
		for range 4 {
			c.Begin()
			all.Go(func() {
				runtime.Gosched()
				c.End()
			})
		}
		<-c.Zero()
		all.Wait()
	}
}
