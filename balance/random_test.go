// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestRandomKeepsTheContract(t *testing.T) { yodeltest.TestBalancer(t, balance.Random) }

type nowhere struct{}

func (nowhere) Dial(context.Context, string) (net.Conn, error) {
	return nil, errors.New("nobody listens")
}
func (nowhere) Listen(string) (net.Listener, error) { return nil, errors.New("nobody may listen") }

// endpoints returns endpoints that no call reaches.
func endpoints(t *testing.T, addrs ...string) []*yodel.Endpoint {
	t.Helper()
	known := make(chan struct{}, 1)
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
		Transport: nowhere{},
		Balancer: func(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
			defer func() { known <- struct{}{} }()
			return yodel.RoundRobin(all, last)
		},
	})
	t.Cleanup(c.Close)
	<-known
	for end := time.Now().Add(time.Minute); ; {
		if all := c.Endpoints(); len(all) == len(addrs) {
			return all // nothing dials them, so they stay ready
		}
		if time.Now().After(end) {
			t.Fatal("the endpoints are not there a minute after their balancer")
		}
		runtime.Gosched()
	}
}

func TestRandomSpreadsEvenly(t *testing.T) {
	all := endpoints(t, "a:1", "b:1", "c:1", "d:1", "e:1")
	p := balance.Random(all, nil)
	call, avoiding := &yodel.Call{}, &yodel.Call{}
	avoiding.Attempts().Avoid(all[1])
	const picks = 4000
	free, rest := make(map[*yodel.Endpoint]int), make(map[*yodel.Endpoint]int)
	for range picks {
		free[p.Pick(call)]++
		rest[p.Pick(avoiding)]++
	}
	for i, ep := range all { // within a fifth: more than 6 standard deviations
		if n := free[ep]; n < picks/5*4/5 || n > picks/5*6/5 {
			t.Errorf("%s was picked %d times of %d", ep.Addr(), n, picks)
		}
		n := rest[ep]
		if i == 1 && n != 0 || i != 1 && (n < picks/4*4/5 || n > picks/4*6/5) {
			t.Errorf("%s was picked %d times of %d beside one that is avoided", ep.Addr(), n, picks)
		}
	}
}
