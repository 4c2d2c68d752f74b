// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/inspect/fleet"
)

// While somebody looks, a page does not wait for a slow read. The first to look after a pause sees
// the fleet as it is, and not as it was when somebody looked last.
func TestTheFirstLookAfterAPauseIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &scripted{newCrowd(0, 0), func() (*fleet.View, error) {
			at := time.Now()
			time.Sleep(2 * time.Second)
			return &fleet.View{At: at}, nil
		}}
		var f collector
		ctx, stop := context.WithCancel(t.Context())
		f.init(ctx, func(time.Duration) reader { return slow })
		age := func() (old, took time.Duration) {
			began := time.Now()
			s, err := f.get(ctx, time.Minute)
			must(t, err)
			return began.Sub(s.At), time.Since(began)
		}
		age()
		time.Sleep(3 * time.Second)
		if old, took := age(); old <= 0 || took > time.Second/4 {
			t.Errorf("while somebody looks, it took %v to see the fleet of %v ago", took, old)
		}
		time.Sleep(time.Minute)
		if old, took := age(); old > 0 || took > 2*time.Second {
			t.Errorf("after a pause, it took %v to see the fleet of %v ago", took, old)
		}
		stop()
		f.close()
	})
}

// While the registry is down, the data is what instances answer now, with the reason.
func TestAnOutageOfTheRegistryIsSaidWithNewData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view := &fleet.View{At: time.Now(), Outage: true, Err: "connection refused"}
		var f collector
		ctx, stop := context.WithCancel(t.Context())
		f.init(ctx, func(time.Duration) reader {
			return &scripted{newCrowd(0, 0), func() (*fleet.View, error) { return view, nil }}
		})
		s, err := f.get(ctx, time.Minute)
		must(t, err)
		if s.View != view || s.err == nil || s.err.Error() != "connection refused" || len(missing(s.View)) > 0 {
			t.Errorf("got the view %+v, %v, and missing %q", s.View, s.err, missing(s.View))
		}
		stop()
		f.close()
	})
}
