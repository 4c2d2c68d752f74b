// SPDX-License-Identifier: Apache-2.0

package opencalls_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/opencalls"
)

var (
	buy   = opencalls.Call{Method: "Shop.Buy", Peer: "10.0.0.7:4711"}
	price = opencalls.Call{Method: "Shop.Price", Peer: "10.0.0.8:4712"}
)

func TestTheMostFrequentCallsAreListedFirst(t *testing.T) {
	open := []opencalls.Call{price, buy, buy}
	for i := range 4 {
		open = append(open, opencalls.Call{Method: "Shop.Stock", Peer: fmt.Sprintf("10.0.0.9:%d", 1000+i)})
	}
	const want = "Shop.Buy from 10.0.0.7:4711 (2), Shop.Price from 10.0.0.8:4712, " +
		"Shop.Stock from 10.0.0.9:1000, Shop.Stock from 10.0.0.9:1001, 2 more"
	if got := opencalls.List(open); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestWhatAShutdownCutsOffIsNamed(t *testing.T) {
	for _, test := range []struct {
		open  []opencalls.Call
		conns int
		want  string
	}{
		{nil, 0, ""},
		{nil, 1, "1 connection without calls"},
		{nil, 2, "2 connections without calls"},
		{[]opencalls.Call{buy}, 3, "1 call: Shop.Buy from 10.0.0.7:4711"},
		{[]opencalls.Call{buy, buy}, 0, "2 calls: Shop.Buy from 10.0.0.7:4711 (2)"},
	} {
		if got := opencalls.CutOff(test.open, test.conns); got != test.want {
			t.Errorf("%v and %d connections: got %q, want %q", test.open, test.conns, got, test.want)
		}
	}
}

func TestLinesSayOnlyWhatThereIs(t *testing.T) {
	ctx := context.Background()
	if got := fmt.Sprint(opencalls.Draining(ctx, nil)); got != "[calls 0]" {
		t.Errorf("without calls: %s", got)
	}
	past, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	if got := fmt.Sprint(opencalls.Draining(past, []opencalls.Call{buy})); got != "[calls 1 open Shop.Buy from 10.0.0.7:4711 forAtMost 0s]" {
		t.Errorf("after the deadline: %s", got)
	}
	if got := fmt.Sprint(opencalls.Stopped(1500*time.Microsecond, "")); got != "[took 2ms]" {
		t.Errorf("a clean end: %s", got)
	}
	if got := fmt.Sprint(opencalls.Stopped(time.Second, "1 call")); got != "[took 1s cutOff 1 call]" {
		t.Errorf("a cut: %s", got)
	}
}
