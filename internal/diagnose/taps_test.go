// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// ended returns a call that has ended.
func ended(method string, took time.Duration, failed bool) *diagnose.Ended {
	c := &diagnose.Ended{
		Method: method, Took: took, Caller: func() string { return "checkout" },
		Traffic: func() introspect.Traffic { return introspect.Traffic{BytesIn: 3, BytesOut: 4} },
	}
	if failed {
		c.Code, c.Message = "not_found", strings.Repeat("no such order ", 100)
	}
	return c
}

// run runs a tap until it ends. It returns the names of the methods that were sent, and how many
// calls were left out.
func run(ctx context.Context, t *diagnose.Tap, draining <-chan struct{}) (sent []string, left int, err error) {
	err = t.Run(ctx, draining, func(m *introspect.Tapped) error {
		if left += m.Left; m.Method != "" {
			sent = append(sent, m.Method)
		}
		return nil
	})
	return sent, left, err
}

func TestATapSendsWhatItsQuerySelects(t *testing.T) {
	for name, test := range map[string]struct {
		q    introspect.TapQuery
		want int
	}{
		"all but built-in methods": {introspect.TapQuery{}, 4},
		"of a method":              {introspect.TapQuery{Method: "yodel.Info"}, 1},
		"of a caller":              {introspect.TapQuery{Peer: "checkout"}, 4},
		"of another caller":        {introspect.TapQuery{Peer: "stock"}, 0},
		"failed":                   {introspect.TapQuery{Failed: true}, 1},
		"slow":                     {introspect.TapQuery{Slower: time.Second}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var taps diagnose.Taps
				tap, err := taps.Open(&test.q)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range []*diagnose.Ended{
					ended("Shop.Order", time.Second, false), ended("Shop.Order", mux.Untimed, false), ended("Shop.Pay", 1, true),
					ended("Shop.Pay", time.Hour, false), ended("yodel.Info", 1, false),
				} {
					taps.Show(c, time.Hour)
				}
				if sent, left, err := run(t.Context(), tap, nil); len(sent) != test.want || left != 0 || err != nil {
					t.Errorf("sent %v and left out %d, %v", sent, left, err)
				}
			})
		})
	}
}

func TestATapLimitsItsRate(t *testing.T) {
	for _, test := range []struct{ perSecond, sent int }{{10, 10}, {0, 100}, {5000, 256}} {
		synctest.Test(t, func(t *testing.T) {
			var taps diagnose.Taps
			tap, err := taps.Open(&introspect.TapQuery{PerSecond: test.perSecond})
			if err != nil {
				t.Fatal(err)
			}
			for range 1000 {
				taps.Show(ended("Shop.Order", 1, false), time.Hour)
			}
			began := time.Now()
			sent, left, err := run(t.Context(), tap, nil)
			if len(sent) != test.sent || len(sent)+left != 1000 || err != nil {
				t.Errorf("%d each second: %d calls were sent and %d left out, %v", test.perSecond, len(sent), left, err)
			}
			if took := time.Since(began); took != 10*time.Minute {
				t.Errorf("the tap has ended after %v", took)
			}
		})
	}
}

func TestTapsAreBounded(t *testing.T) {
	var taps diagnose.Taps
	var open []*diagnose.Tap
	for range diagnose.MaxTaps {
		tap, err := taps.Open(&introspect.TapQuery{})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, tap)
	}
	if _, err := taps.Open(&introspect.TapQuery{}); !errors.Is(err, diagnose.ErrTaps) {
		t.Errorf("one tap too many: %v", err)
	}
	for i, tap := range open {
		if !taps.Any() {
			t.Errorf("no tap is open after %d of %d were closed", i, len(open))
		}
		taps.Close(tap)
	}
	if taps.Any() {
		t.Error("a tap is open after all were closed")
	}
	taps.Show(ended("Shop.Order", 1, false), time.Hour)
}

func TestATapEnds(t *testing.T) {
	broken := errors.New("the caller has gone")
	synctest.Test(t, func(t *testing.T) {
		var taps diagnose.Taps
		tap, err := taps.Open(&introspect.TapQuery{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		draining := make(chan struct{})
		close(draining)
		if _, _, err := run(ctx, tap, draining); err != nil {
			t.Errorf("while the server drains: %v", err)
		}
		taps.Show(ended("Shop.Order", 1, false), time.Hour)
		if err := tap.Run(ctx, nil, func(*introspect.Tapped) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("a feed that cannot be sent: %v", err)
		}
		cancel(broken)
		if _, _, err := run(ctx, tap, nil); !errors.Is(err, broken) {
			t.Errorf("of a caller that has gone: %v", err)
		}
	})
}

func TestATapDescribesACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taps diagnose.Taps
		tap, err := taps.Open(&introspect.TapQuery{})
		if err != nil {
			t.Fatal(err)
		}
		defer taps.Close(tap)
		failed := ended("Shop.Order", time.Second, true)
		failed.Tenant, failed.Trace = "acme", "00-1-2-3"
		taps.Show(failed, time.Hour)
		taps.Show(ended("Shop.Pay", mux.Untimed, false), time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		var got []introspect.Tapped
		_ = tap.Run(ctx, nil, func(m *introspect.Tapped) error {
			if got = append(got, *m); len(got) == 2 {
				cancel()
			}
			return nil
		})
		if m := got[0]; m.Code != "not_found" || len(m.Message) != 300 || m.Took != time.Second || m.Peer != "checkout" || m.Tenant != "acme" || m.Trace != "00-1-2-3" || m.In != 3 || m.Out != 4 || m.At.IsZero() {
			t.Errorf("the failed call is %+v", m)
		}
		if m := got[1]; m.Code != "" || m.Message != "" || m.Took != 0 || m.Method != "Shop.Pay" {
			t.Errorf("the call that was not timed is %+v", m)
		}
	})
}
