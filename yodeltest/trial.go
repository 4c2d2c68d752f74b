// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
)

// A trial is a test of one rule within a time. It knows what the check is doing, to say so if the
// check blocks.
type trial struct {
	ctx  context.Context // ends when the time is over
	step atomic.Pointer[string]
}

func (t *trial) doingf(format string, args ...any) {
	t.step.Store(new(fmt.Sprintf(format, args...)))
}

// run runs a check on a goroutine of its own. It returns the error of the check, or an error that
// says that the check panicked or blocked.
func (t *trial) run(check func() error) error {
	t.doingf("the check began")
	outcome := make(chan error, 1)
	go func() {
		var err error
		defer func() { outcome <- err }()
		defer recoverTo(&err)
		err = check()
	}()
	select {
	case err := <-outcome:
		return err
	case <-t.ctx.Done():
		return fmt.Errorf("blocked: %s", *t.step.Load())
	}
}

// A servedTrial is a trial whose calls a server executes.
type servedTrial struct {
	trial
	executed atomic.Int32
	began    chan struct{} // receives when Test.Wait, or another method that waits, begins
	release  chan struct{} // lets Test.Wait return
}

func newServedTrial(ctx context.Context) servedTrial {
	return servedTrial{trial: trial{ctx: ctx}, began: make(chan struct{}, 1000), release: make(chan struct{})}
}

// serve registers methods, whose calls it counts, and starts the server. Served receives when the
// server has ended.
func (t *servedTrial) serve(ctx context.Context, s *yodel.Server, methods map[string]func(context.Context, *string) (*string, error)) (addr string, served chan error, err error) {
	for name, f := range methods {
		err := s.Handle(name, func(ctx context.Context, in *string) (*string, error) {
			t.executed.Add(1)
			return f(ctx, in)
		})
		if err != nil {
			return "", nil, err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	served = make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	return l.Addr().String(), served, nil
}

// wait is the method Test.Wait, which waits until release.
func (t *servedTrial) wait(ctx context.Context, in *string) (*string, error) {
	t.began <- struct{}{}
	select {
	case <-t.release:
		return in, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
