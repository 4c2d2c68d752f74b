// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestRoundRobinKeepsTheContract(t *testing.T) { yodeltest.TestBalancer(t, yodel.RoundRobin) }

func TestStaticKeepsTheContract(t *testing.T) {
	yodeltest.TestResolver(t, discovery.Static("127.0.0.1:1", "127.0.0.1:2"), nil, nil)
}

// endpoints returns n endpoints that no call reaches. All are ready, because nobody tries to
// connect.
func endpoints(t testing.TB, n int) []*yodel.Endpoint {
	t.Helper()
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("nobody:%d", i+1)
	}
	nowhere := transportFunc(func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody listens") })
	c := newClient(t, &yodel.ClientOptions{Transport: nowhere}, addrs...)
	until(t, "the endpoints are known", func() bool { return len(c.Endpoints()) == n })
	return c.Endpoints()
}

// picks counts which endpoints n calls get that avoid some.
func picks(p yodel.Picker, n int, avoid ...*yodel.Endpoint) map[*yodel.Endpoint]int {
	counts := make(map[*yodel.Endpoint]int)
	call := &yodel.Call{}
	for _, ep := range avoid {
		call.Attempts().Avoid(ep)
	}
	for range n {
		counts[p.Pick(call)]++
	}
	return counts
}

func TestRoundRobinTakesTurns(t *testing.T) {
	all := endpoints(t, 5)
	p := yodel.RoundRobin(all, nil)
	for round := range 100 {
		counts := picks(p, len(all))
		for _, ep := range all {
			if counts[ep] != 1 {
				t.Fatalf("round %d: %s was picked %d times", round, ep.Addr(), counts[ep])
			}
		}
	}
}

// An instance that comes or goes with every few calls must not make the turn begin anew.
func TestRoundRobinGoesOnAfterAChange(t *testing.T) {
	all := endpoints(t, 5)
	var p yodel.Picker
	counts := make(map[*yodel.Endpoint]int)
	const each = 100
	for range each * len(all) { // a change for every pick
		p = yodel.RoundRobin(all, p)
		counts[p.Pick(&yodel.Call{})]++
	}
	for _, ep := range all {
		if counts[ep] != each {
			t.Errorf("%s was picked %d times, want %d", ep.Addr(), counts[ep], each)
		}
	}
}

func TestNewRoundRobinsBeginAnywhere(t *testing.T) {
	all := endpoints(t, 4)
	counts := make(map[*yodel.Endpoint]int)
	const clients = 4000
	for range clients {
		counts[yodel.RoundRobin(all, nil).Pick(&yodel.Call{})]++
	}
	wantEven(t, counts, all, clients)
}

// The load of an endpoint that is avoided must not become its neighbour's.
func TestCallsThatAvoidAnEndpointSpreadOverTheOthers(t *testing.T) {
	all := endpoints(t, 5)
	const calls = 4000
	p := yodel.RoundRobin(all, nil)
	wantEven(t, picks(p, calls, all[1]), []*yodel.Endpoint{all[0], all[2], all[3], all[4]}, calls)
	wantEven(t, picks(p, calls, all[0], all[1], all[4]), all[2:4], calls)

	all[3].SetReady("test", false)
	defer all[3].SetReady("test", true)
	wantEven(t, picks(p, calls, all[0]), []*yodel.Endpoint{all[1], all[2], all[4]}, calls)
}

// wantEven checks that the endpoints share the picks, each within a fifth: more than 6 standard
// deviations.
func wantEven(t *testing.T, counts map[*yodel.Endpoint]int, among []*yodel.Endpoint, picks int) {
	t.Helper()
	total := 0
	for _, ep := range among {
		total += counts[ep]
		if share := picks / len(among); counts[ep] < share*4/5 || counts[ep] > share*6/5 {
			t.Errorf("%s was picked %d times, want about %d", ep.Addr(), counts[ep], share)
		}
	}
	if total != picks {
		t.Errorf("%d of %d picks went elsewhere", picks-total, picks)
	}
}

// A call is tried with each endpoint as long as one of them may be there. When there is none, one
// attempt says so.
func TestWhenNoServerIsThereOneAttemptIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int32
		c := newClient(t, &yodel.ClientOptions{
			Transport: transportFunc(func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody listens") }),
			EndpointMiddleware: []yodel.EndpointMiddleware{func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					attempts.Add(1)
					return next(ctx, call)
				}
			}},
		}, "a", "b", "c", "d")
		for i, want := range []struct {
			attempts int32
			says     string
		}{
			{4, "4 attempts at "}, // nobody knows yet
			{1, "; no other of 4 endpoints is connected"},
			{1, "; no other of 4 endpoints is connected"},
		} {
			attempts.Store(0)
			err := c.Call(t.Context(), "Try", &struct{}{}, nil)
			if n := attempts.Load(); n != want.attempts || !errors.Is(err, yodel.Unavailable) || !yodel.NotProcessed(err) || !strings.Contains(err.Error(), want.says) {
				t.Errorf("call %d: %d attempts, %v; want %d, and %q", i, n, err, want.attempts, want.says)
			}
		}
	})
}
