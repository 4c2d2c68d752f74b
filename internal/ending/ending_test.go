// SPDX-License-Identifier: Apache-2.0

package ending_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/ending"
)

var errCause = errors.New("the reason")

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// An End says the same whether a goroutine waited before it ended or asks afterwards.
func TestHowAContextEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end        func(e *ending.End)
		err, cause error
	}{
		"canceled":                   {func(e *ending.End) { e.Cancel(context.DeadlineExceeded, errCause) }, context.DeadlineExceeded, errCause},
		"returned":                   {(*ending.End).Return, context.Canceled, nil},
		"canceled and then returned": {func(e *ending.End) { e.Cancel(context.DeadlineExceeded, errCause); e.Return() }, context.DeadlineExceeded, errCause},
		"returned and then canceled": {func(e *ending.End) { e.Return(); e.Cancel(context.DeadlineExceeded, errCause) }, context.Canceled, nil},
	} {
		for _, waited := range []bool{false, true} {
			var e ending.End
			if waited && isClosed(e.Done()) || e.Err() != nil || e.Cause() != nil {
				t.Errorf("%s: it has ended before its end", name)
			}
			c.end(&e)
			if err, cause := e.Err(), e.Cause(); err != c.err || cause != c.cause { // the same error
				t.Errorf("%s, waited %v: got %v because of %v, want %v because of %v", name, waited, err, cause, c.err, c.cause)
			}
			if !isClosed(e.Done()) {
				t.Errorf("%s, waited %v: the channel is open", name, waited)
			}
		}
	}
}

func TestAfterFuncRunsOnceAtTheEnd(t *testing.T) {
	for name, end := range map[string]func(e *ending.End){
		"canceled": func(e *ending.End) { e.Cancel(context.Canceled, nil) },
		"returned": (*ending.End).Return,
	} {
		var e ending.End
		var ran sync.WaitGroup
		ran.Add(2)
		stop := e.AfterFunc(func() { t.Errorf("%s: a stopped function has run", name) })
		ranAlready := e.AfterFunc(ran.Done)
		if !stop() || stop() {
			t.Errorf("%s: stopping reports something else than the first time true", name)
		}
		end(&e)
		late := e.AfterFunc(ran.Done)
		ran.Wait()
		if ranAlready() || late() {
			t.Errorf("%s: stopping a function that has run reports true", name)
		}
	}
}

// Of many goroutines that end a context, one decides how it ends, and all that wait see that end.
func TestOneEndWins(t *testing.T) {
	for range 100 {
		var e ending.End
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				switch n % 4 {
				case 0:
					e.Return()
				case 1:
					e.Cancel(context.DeadlineExceeded, errCause)
				default:
					<-e.Done()
					if err, cause := e.Err(), e.Cause(); (err == context.DeadlineExceeded) != (cause == errCause) { // the same error
						t.Errorf("it ended with %v because of %v", err, cause)
					}
				}
			})
		}
		all.Wait()
	}
}

func TestAnEndThatNobodyAwaitsAllocatesNothing(t *testing.T) {
	e := make([]ending.End, 1001)
	n := 0
	if got := testing.AllocsPerRun(1000, func() { e[n].Return(); n++ }); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
