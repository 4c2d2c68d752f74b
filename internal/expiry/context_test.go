// SPDX-License-Identifier: Apache-2.0

package expiry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/expiry"
)

// A reference is the context that a Context stands for, made at once.
type reference struct {
	context.Context
	cancel context.CancelCauseFunc
}

func (r *reference) Init(parent context.Context) {
	r.Context, r.cancel = context.WithCancelCause(parent)
}

func (r *reference) Limit(at time.Time) {
	ctx, stop := context.WithDeadline(r.Context, at)
	cancel := r.cancel
	r.Context, r.cancel = ctx, func(cause error) {
		cancel(cause)
		stop()
	}
}

func (r *reference) Cancel(cause error) { r.cancel(cause) }
func (r *reference) Return()            { r.cancel(nil) }

// A calls is the context of a call.
type calls interface {
	context.Context
	Init(parent context.Context)
	Limit(at time.Time)
	Cancel(cause error)
	Return()
}

// A Context behaves as the contexts of package context, whatever happens to it and whenever code
// asks for its channel or derives a context from it.
func TestAContextBehavesAsThoseOfPackageContext(t *testing.T) {
	const steps = 4
	for path := range 1 << (3 * steps) {
		got := [2]string{}
		for i, c := range []calls{new(expiry.Context), new(reference)} {
			synctest.Test(t, func(*testing.T) { got[i] = take(c, path, steps) })
		}
		if got[0] != got[1] {
			t.Fatalf("path %o:\n got %s\nwant %s", path, got[0], got[1])
		}
	}
}

// take does to c what the octal digits of path name, and returns how c looked after each step.
func take(c calls, path, steps int) string {
	var looked strings.Builder
	parent, end := context.WithCancelCause(context.Background())
	defer end(nil)
	c.Init(parent)
	var derived context.Context
	limited := false
	for range steps {
		switch path & 7 {
		case 0:
			c.Return()
		case 1:
			c.Cancel(errCause)
		case 2:
			end(errParent)
		case 3:
			if !limited {
				c.Limit(time.Now().Add(time.Second))
				limited = true
			}
		case 4:
			time.Sleep(time.Minute)
		case 5:
			_ = c.Done()
		case 6:
			if derived == nil {
				ctx, cancel := context.WithCancel(c)
				defer cancel()
				derived = ctx //nolint:fatcontext // once at most
			}
		}
		path >>= 3
		synctest.Wait()
		at, ok := c.Deadline()
		fmt.Fprint(&looked, c.Err(), " ", at.Sub(time.Now().Round(0)).Round(time.Second) > 0, ok)
		if path&1 != 0 { // a look makes it too
			fmt.Fprint(&looked, " ", context.Cause(c), isClosed(c.Done()))
		}
		if derived != nil {
			fmt.Fprint(&looked, " ", derived.Err(), context.Cause(derived), isClosed(derived.Done()))
		}
		looked.WriteString("; ")
	}
	fmt.Fprint(&looked, context.Cause(c), isClosed(c.Done()))
	return looked.String()
}

var errCause, errParent = errors.New("the caller has left"), errors.New("the parent has ended")

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func TestAContextEndsOnce(t *testing.T) {
	for range 200 {
		var c expiry.Context
		c.Init(context.Background())
		var all sync.WaitGroup
		for n := range 6 {
			all.Go(func() {
				switch n % 3 {
				case 0:
					c.Return()
				case 1:
					c.Cancel(errCause)
				default:
					<-c.Done()
					if c.Err() != context.Canceled { // the same error
						t.Error(c.Err())
					}
				}
			})
		}
		all.Wait()
		if cause := context.Cause(&c); cause != errCause && cause != context.Canceled { // the same errors
			t.Error(cause)
		}
	}
}

func TestADeadlineIsSetWhileTheCallIsCanceled(t *testing.T) {
	for range 200 {
		var c expiry.Context
		c.Init(context.Background())
		var all sync.WaitGroup
		all.Go(func() { c.Cancel(errCause) })
		c.Limit(time.Now().Add(time.Hour))
		<-c.Done()
		if cause := context.Cause(&c); cause != errCause { // the same error
			t.Error(cause)
		}
		all.Wait()
	}
}

func TestAContextThatNobodyAsksForAllocatesNothing(t *testing.T) {
	contexts, n := make([]expiry.Context, 1001), 0
	if got := testing.AllocsPerRun(1000, func() {
		c := &contexts[n]
		n++
		c.Init(context.Background())
		c.Limit(time.Now().Add(time.Hour))
		if c.Err() != nil || c.Value("key") != nil {
			t.Error("it has ended")
		}
		c.Return()
	}); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
