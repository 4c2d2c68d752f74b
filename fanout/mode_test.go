// SPDX-License-Identifier: Apache-2.0

package fanout_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/fanout"
)

func TestMergeMakesOneReplyOfThoseThatCame(t *testing.T) {
	c, services := start(t, nil, 3, 0)
	receipts, err := fanout.Inform(t.Context(), c, which, &[]int{7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	all, err := fanout.Merge(receipts, fanout.Concat)
	if err != nil || !slices.Equal(*all, []int{7, 0, 7, 1, 7, 2}) {
		t.Errorf("got %v, %v", *all, err)
	}
	services[1].err = yodel.Errorf(yodel.NotFound, "not here")
	if receipts, err = fanout.Inform(t.Context(), c, which, &[]int{7}, nil); err != nil {
		t.Fatal(err)
	}
	all, err = fanout.Merge(receipts, fanout.Concat)
	if !errors.Is(err, yodel.NotFound) || !slices.Equal(*all, []int{7, 0, 7, 2}) {
		t.Errorf("with a failed call: got %v, %v", *all, err)
	}
	stocks := []fanout.Receipt[map[string]int]{{Reply: &map[string]int{"a": 1, "b": 2}}, {Reply: &map[string]int{"b": 3}}}
	if all, err := fanout.Merge(stocks, fanout.Union); err != nil || !maps.Equal(*all, map[string]int{"a": 1, "b": 3}) {
		t.Errorf("maps: got %v, %v", *all, err)
	}
	sum, err := fanout.Merge([]fanout.Receipt[int]{{Reply: new(2)}, {Reply: new(3)}}, func(all, one *int) { *all += *one })
	if err != nil || *sum != 5 {
		t.Errorf("numbers: got %d, %v", *sum, err)
	}
}

func TestAClientBroadcastsEachCall(t *testing.T) {
	c, services := start(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{fanout.Broadcasting(nil)}}, 3, 0)
	call := &yodel.Call{}
	got, err := which.Do(t.Context(), c, call, &[]int{7})
	if err != nil || !slices.Equal(*got, []int{7, 0}) || call.Trailer["number"] != "0" {
		t.Errorf("got %v with the trailer %v, %v", got, call.Trailer, err)
	}
	pinned := &yodel.Call{Endpoint: c.Endpoints()[1]}
	if got, err := which.Do(t.Context(), c, pinned, &[]int{7}); err != nil || !slices.Equal(*got, []int{7, 1}) {
		t.Errorf("a pinned call: got %v, %v", got, err)
	}
	for i, want := range []int32{1, 2, 1} {
		if n := services[i].executed.Load(); n != want {
			t.Errorf("instance %d has executed %d calls, want %d", i, n, want)
		}
	}
	services[2].err = yodel.Errorf(yodel.NotFound, "not here")
	_, err = which.Call(t.Context(), c, &[]int{7})
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != "YDL3522" || !errors.Is(err, yodel.NotFound) {
		t.Errorf("with a failed call: got %v", err)
	}
}

func TestAClientForksEachCall(t *testing.T) {
	forking := []yodel.Middleware{fanout.Forking(nil)}
	c, services := start(t, &yodel.ClientOptions{Middleware: forking}, 3, 0)
	services[0].takes, services[1].err = time.Minute, yodel.Errorf(yodel.NotFound, "not here")
	got, err := which.Call(t.Context(), c, &[]int{7})
	if err != nil || !slices.Equal(*got, []int{7, 2}) {
		t.Errorf("got %v, %v", got, err)
	}
	c, services = start(t, &yodel.ClientOptions{Middleware: forking}, 2, 0) // the call of the slow one may still run
	services[0].err, services[1].err = yodel.Errorf(yodel.NotFound, "not here"), yodel.Errorf(yodel.NotFound, "not here")
	_, err = which.Call(t.Context(), c, &[]int{7})
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != "YDL3523" {
		t.Errorf("all calls fail: got %v", err)
	}
}
