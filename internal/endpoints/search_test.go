// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func numbered(n int) (addrs []string) {
	for i := range n {
		addrs = append(addrs, fmt.Sprint(i))
	}
	return addrs
}

// Most endpoints are silent, so the search dials more and more until one answers. The order is
// random: the one that answers may be the last.
func TestASearchWidensUntilAnEndpointAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish(numbered(maxDials)...)
		c.serve(answers, fmt.Sprint(maxDials-1))
		began := time.Now()
		err := connect(endpoints[0])
		if err == nil || !strings.Contains(err.Error(), "another one is there") {
			t.Errorf("the call fails with %v", err)
		}
		took := time.Since(began)
		synctest.Wait()
		most := (maxDials/readyAtOnce-1)*widenAfter + settleMost + suspectAfter
		if c.list.Connected() == 0 || c.most > maxDials || took > most {
			t.Errorf("%d endpoints are connected after %v and at most %d attempts at once", c.list.Connected(), took, c.most)
		}
		if want := readyAtOnce * (1 + int(took/widenAfter)); c.most > want {
			t.Errorf("%d attempts were made at once within %v, want at most %d", c.most, took, want)
		}
	})
}

// Attempts that fail make room for others at once.
func TestASearchGoesOnAfterFailures(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish(numbered(500)...)
		c.serve(refuses, numbered(499)...)
		c.serve(answers, "499")
		began := time.Now()
		var calls sync.WaitGroup
		for _, ep := range endpoints[:20] {
			calls.Go(func() {
				if err := connect(ep); err == nil {
					t.Error("a call to an endpoint that refuses succeeds")
				}
			})
		}
		calls.Wait()
		synctest.Wait()
		if !endpoints[499].Connected() || time.Since(began) > widenAfter || c.most > readyAtOnce {
			t.Errorf("after %v the last one is connected: %t; %d attempts at once", time.Since(began), endpoints[499].Connected(), c.most)
		}
		for _, addr := range numbered(500) {
			if n := len(c.dialsTo(addr)); n > 2 {
				t.Errorf("%s was dialled %d times for 20 calls", addr, n)
			}
		}
	})
}

func TestASearchWithoutAnAnswerEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish("a", "b", "c")
		began := time.Now()
		if err := connect(endpoints[0]); err == nil || time.Since(began) > c.list.Timeout+lastBackoff {
			t.Errorf("the call ends after %v: %v", time.Since(began), err)
		}
		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := endpoints[1].Connect(ctx, time.Time{}, false, nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 200*time.Millisecond {
			t.Errorf("a call with a context ends after %v: %v", time.Since(began), err)
		}
	})
}

// The calls of a new client are balanced from the start, because the search waits a little.
func TestASearchWaitsForTheOthersALittle(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish("a", "b", "c", "d")
		c.serve(takes(20*time.Millisecond), "a", "b")
		c.serve(takes(35*time.Millisecond), "c")
		c.serve(takes(10*time.Second), "d")
		began := time.Now()
		if err := connect(endpoints[0]); err != nil || time.Since(began) > 45*time.Millisecond || c.list.Connected() != 3 {
			t.Errorf("after %v, %d endpoints are connected: %v", time.Since(began), c.list.Connected(), err)
		}
	})
	inBubble(t, func(t *testing.T, c *fakeClient) { // the picked endpoint is the slow one
		endpoints := c.publish("a", "b")
		c.serve(takes(20*time.Millisecond), "a")
		c.serve(takes(150*time.Millisecond), "b")
		if err := connect(endpoints[1]); err != nil || c.list.Connected() != 2 {
			t.Errorf("%d endpoints are connected: %v", c.list.Connected(), err)
		}
	})
}

// Endpoints that were connected before come first, and suspects last.
func TestTheCandidatesOfASearch(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish(numbered(60)...)
		for i, ep := range endpoints {
			switch {
			case i < 10:
				ep.reached.Store(true)
			case i < 20:
				ep.suspect.Store(true)
			case i < 50: // they have failed just now
				ep.busy.Store(true)
				ep.lostAt.Store(1)
				ep.reached.Store(true)
			}
		}
		got := c.list.candidates(endpoints[59])
		for _, ep := range endpoints[20:50] {
			ep.busy.Store(false)
		}
		rank := func(ep *endpoint) int {
			switch {
			case ep == endpoints[59]:
				return 0
			case ep.reached.Load():
				return 1
			case ep.suspect.Load():
				return 3
			}
			return 2
		}
		if !slices.IsSortedFunc(got, func(a, b *endpoint) int { return rank(a) - rank(b) }) || len(got) != 30+hastened {
			t.Errorf("there are %d candidates, want %d, in their order", len(got), 30+hastened)
		}
	})
}

func TestASuspectIsAnEndpointThatWasNeverReached(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish("slow", "gone", "good")
		c.serve(takes(time.Second), "slow")
		c.serve(refuses, "gone")
		c.serve(answers, "good")
		for _, ep := range endpoints {
			ep.Demand()
		}
		synctest.Wait()
		if got := fmt.Sprint(endpoints[0].isSuspect(), endpoints[1].isSuspect(), endpoints[2].isSuspect()); got != "false true false" {
			t.Errorf("at first: suspects are %s", got)
		}
		time.Sleep(suspectAfter + 1)
		if !endpoints[0].isSuspect() {
			t.Error("an endpoint whose attempt is slow is no suspect")
		}
		time.Sleep(time.Second + reshapeAfter)
		synctest.Wait()
		if endpoints[0].isSuspect() || strings.Join(c.sets, " ") != "slowgonegood/slowgonegood slowgonegood/slowgood slowgonegood/good slowgonegood/slowgood" {
			t.Errorf("an endpoint that answered is a suspect: %t; balancers get %v", endpoints[0].isSuspect(), c.sets)
		}
		cut(endpoints[2], End{Broke: true, Err: errRefused})
		c.serve(refuses, "good")
		time.Sleep(time.Minute)
		if endpoints[2].isSuspect() {
			t.Error("an endpoint that was reached before is a suspect")
		}
	})
}

// When the last connection is lost, all servers may have restarted.
func TestLostEndpointsAreDialledWhenTheLastConnectionIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish("a", "b")
		c.serve(answers, "a", "b")
		for _, ep := range endpoints {
			ep.Demand()
		}
		synctest.Wait()
		c.serve(refuses, "a")
		cut(endpoints[0], End{Broke: true, Err: errRefused})
		time.Sleep(10*time.Second + 1) // its pauses have their full length
		c.serve(answers, "a")
		before := len(c.dialsTo("a"))
		c.serve(refuses, "b")
		cut(endpoints[1], End{Broke: true, Worked: true, Err: errRefused})
		synctest.Wait()
		if n := len(c.dialsTo("a")); n != before+1 || !endpoints[0].Connected() {
			t.Errorf("there were %d attempts at once, and it is connected: %t", n-before, endpoints[0].Connected())
		}
	})
}

func TestConnectAnyMakesFewAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var made, open, most atomic.Int32
		try := func(good string) error {
			return ConnectAny(t.Context(), numbered(1000), func(of string) error {
				made.Add(1)
				defer open.Add(-1)
				if n := open.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Millisecond)
				if of == good || good == "any" {
					return nil
				}
				return errRefused
			})
		}
		if err := try("any"); err != nil || made.Load() > readyAtOnce {
			t.Errorf("%d attempts: %v", made.Load(), err)
		}
		time.Sleep(time.Second)
		if err := try("777"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		made.Store(0)
		if err := try("none"); !errors.Is(err, errRefused) || made.Load() != 1000 || most.Load() > readyAtOnce {
			t.Errorf("%d attempts, %d at once: %v", made.Load(), most.Load(), err)
		}
	})
}
