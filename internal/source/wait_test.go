// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/source"
)

// A list gets instances after a while.
type list struct {
	after   time.Duration // 0 for never
	known   bool
	closed  bool
	failure error // of the resolver
}

func (l *list) Await(ctx context.Context, limit time.Duration, _ bool) (known bool, err error) {
	if l.closed {
		return l.known, source.ErrClosed
	}
	var ready <-chan time.Time
	if l.after > 0 {
		ready = time.After(l.after)
	}
	select {
	case <-ready:
		return true, nil
	case <-time.After(limit):
		return l.known, source.ErrLate
	case <-ctx.Done():
		return l.known, context.Cause(ctx)
	}
}

func (l *list) Resolver() (text string, heard time.Time, failure error) {
	if l.failure != nil {
		text = l.failure.Error()
	}
	return text, heard, l.failure
}

func TestACallWaitsForTheFirstInstances(t *testing.T) {
	broken := errors.New("no quorum")
	for _, test := range []struct {
		name     string
		list     list
		deadline time.Duration // 0 for none
		cancel   time.Duration // 0 for never
		want     string
		took     time.Duration
	}{
		{"they come", list{after: time.Second}, 0, 0, "<nil>", time.Second},
		{"they come before the deadline", list{after: time.Second}, 2 * time.Second, 0, "<nil>", time.Second},
		{"the client is closed", list{closed: true}, 0, 0, "YDL1007 Shop.Buy: the client is closed", 0},
		{"the resolver is silent", list{}, time.Minute, 0, "YDL1201 Shop.Buy: the resolver of a file named no instances within 3s", 3 * time.Second},
		{"the resolver fails", list{failure: broken}, 0, 0, "YDL1201 Shop.Buy: the resolver of a file named no instances within 3s; it failed: no quorum", 3 * time.Second},
		{"there is no resolver", list{failure: source.ErrNone}, 0, 0, "YDL1201 Shop.Buy: the resolver of a file named no instances within 3s: " + source.ErrNone.Error(), 3 * time.Second},
		{"the balancer takes long", list{known: true}, 0, 0, "YDL1002 Shop.Buy: instances are known, and the balancer has made no picker within 3s", 3 * time.Second},
		{"the deadline passes", list{}, 2 * time.Second, 0, "YDL1005 the deadline passed after 2s of waiting for the resolver of a file, which has named no instances yet", 2 * time.Second},
		{"the deadline passes before the balancer ends", list{known: true}, 2 * time.Second, 0, "YDL1005 the deadline passed after 2s of waiting for the balancer, which has made no picker yet", 2 * time.Second},
		{"the deadline had passed", list{}, -time.Second, 0, "YDL1005 the deadline passed before the call was sent", 0},
		{"the caller cancels", list{failure: source.ErrNoAddress}, 0, time.Second, "YDL1006 the caller canceled it after 1s of waiting for the resolver of a file, which has named no instances yet: " + source.ErrNoAddress.Error() + "; it was not executed", time.Second},
		{"the caller had canceled", list{}, 0, time.Nanosecond, "YDL1006 the caller canceled it before the call was sent; it was not executed", time.Nanosecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s source.Source
				s.SetUp("a file", nil, nil)
				s.SetList(&test.list, 3*time.Second)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.cancel > 0 {
					time.AfterFunc(test.cancel, cancel)
				}
				began, deadline := time.Now(), time.Time{}
				if test.deadline != 0 {
					deadline = began.Add(test.deadline)
				}
				err := s.Await(ctx, "Shop.Buy", deadline, true)
				if got := worded(ctx, t, err); got != test.want || time.Since(began) != test.took {
					t.Errorf("after %v:\ngot  %s\nwant %s after %v", time.Since(began), got, test.want, test.took)
				}
			})
		})
	}
}

// worded returns the ID and the text of the error of a call that was not executed.
func worded(ctx context.Context, t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return "<nil>"
	}
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		if !f.Unprocessed {
			t.Errorf("%v: the call may have been executed", f)
		}
		return f.ID + " " + f.Error()
	}
	if lost, ok := errors.AsType[*mux.CallError](err); !ok || !lost.NotProcessed {
		t.Errorf("%v: the call may have been executed", err)
	}
	r := reason.Side{Name: "client"}.Of(ctx, reason.Call{Method: "Shop.Buy"}, "", err)
	return strings.TrimSpace(fmt.Sprintf("%s %s", r.ID, strings.TrimPrefix(r.Text, "Shop.Buy: ")))
}
