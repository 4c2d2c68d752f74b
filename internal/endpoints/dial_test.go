// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
)

func TestCallsShareAnAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		ep := c.publish("a")[0]
		c.serve(takes(time.Second), "a")
		var calls sync.WaitGroup
		for alone := range 20 {
			calls.Go(func() {
				if _, err := ep.Connect(t.Context(), time.Time{}, alone%2 == 0, nil); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if n := len(c.dialsTo("a")); n != 1 || len(ep.Conns()) != 1 || c.list.Connected() != 1 {
			t.Errorf("%d attempts made %d connections; %d endpoints are connected", n, len(ep.Conns()), c.list.Connected())
		}
	})
}

func TestThePausesGrow(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		ep := c.publish("a")[0]
		c.serve(refuses, "a")
		ep.Demand()
		time.Sleep(time.Minute)
		dials := c.dialsTo("a")
		if len(dials) < 40 || len(dials) > 90 {
			t.Errorf("in a minute there were %d attempts", len(dials))
		}
		for i := 1; i < len(dials); i++ {
			pause, full := dials[i].Sub(dials[i-1]), min(firstBackoff<<min(i, 16), lastBackoff)
			if pause < full/2 || pause > full {
				t.Errorf("the pause after %d failures is %v, want %v to %v", i, pause, full/2, full)
			}
		}
		c.serve(answers, "a")
		time.Sleep(lastBackoff)
		if !ep.Connected() || ep.Status() != 0 {
			t.Errorf("the endpoint has the status %#x when its server is back", ep.Status())
		}
	})
}

// A client that can reach none of many endpoints dials each of them rarely.
func TestManyLostEndpointsAreDialledRarely(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		var addrs []string
		for i := range 1000 {
			addrs = append(addrs, fmt.Sprint(i))
		}
		c.serve(refuses, addrs...)
		for _, ep := range c.publish(addrs...) {
			ep.dialQuietly()
		}
		time.Sleep(5 * time.Minute)
		before, dials := time.Now(), 0
		time.Sleep(time.Minute)
		for _, addr := range addrs {
			for _, at := range c.dialsTo(addr) {
				if at.After(before) {
					dials++
				}
			}
		}
		if most := int(time.Minute / lostSpacing * 3 / 2); dials > most || dials < 1000 {
			t.Errorf("there were %d attempts in a minute, want 1000 to %d", dials, most)
		}
	})
}

func TestBackgroundAttemptsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		var addrs []string
		for i := range 200 {
			addrs = append(addrs, fmt.Sprint(i))
		}
		demanded := 0
		for _, ep := range c.publish(addrs...) {
			if ep.Demand() {
				demanded++
			}
		}
		time.Sleep(time.Minute) // attempts take 3 s, and their retries wait for each other
		synctest.Wait()
		if demanded != maxDials || c.most != maxDials {
			t.Errorf("%d endpoints were dialled, %d at the same time, want %d", demanded, c.most, maxDials)
		}
	})
}

func TestACallFailsAtOnceDuringAPause(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish("a", "b")
		c.serve(answers, "b")
		c.serve(refuses, "a")
		if err := connect(endpoints[1]); err != nil {
			t.Fatal(err)
		}
		if err := connect(endpoints[0]); !errors.Is(err, errRefused) || !endpoints[0].Unreachable() {
			t.Errorf("the first call fails with %v; unreachable: %t", err, endpoints[0].Unreachable())
		}
		dials, began := len(c.dialsTo("a")), time.Now()
		err := connect(endpoints[0])
		failure, ok := err.(*reason.DialError)
		if !ok || failure.Next <= 0 || failure.Next > 2*firstBackoff || time.Since(began) != 0 || len(c.dialsTo("a")) != dials {
			t.Errorf("the second call fails with %+v after %v, and there were %d more attempts", err, time.Since(began), len(c.dialsTo("a"))-dials)
		}
	})
}

// A call without another endpoint does not wait for the whole pause.
func TestACallThatIsAloneShortensThePause(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		ep := c.publish("a")[0]
		c.serve(refuses, "a")
		ep.Demand()
		time.Sleep(20 * time.Second) // the pauses have their full length
		for i := range 20 {
			before := len(c.dialsTo("a"))
			_, err := ep.Connect(t.Context(), time.Time{}, true, nil)
			if failure, ok := err.(*reason.DialError); !ok || failure.Next <= 0 {
				t.Errorf("the call fails with %v", err)
			}
			dials := c.dialsTo("a")
			if pause := dials[before].Sub(dials[before-1]); i > 0 && pause > urgentBackoff {
				t.Errorf("the attempt came %v after the one before", pause)
			}
		}
	})
}

func TestAConnectionThatBreaksIsReplacedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		ep := c.publish("a")[0]
		c.serve(answers, "a")
		if err := connect(ep); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(time.Millisecond)
			cut(ep, End{Err: io.EOF, Worked: true, Broke: true})
			if !ep.Connected() && ep.Status() == Offline { // it may be connected again
				t.Error("the endpoint without a connection is offline, and not only unready")
			}
			synctest.Wait()
			if !ep.Connected() || ep.Status() != 0 {
				t.Fatal("the endpoint is not connected again")
			}
		}
		if got := c.changes[:2]; got[0] != "a connection false" || got[1] != "a connection true" || ep.Shunned()[byConn] != 10 {
			t.Errorf("there were the changes %q, and %d in all", got, ep.Shunned()[byConn])
		}
	})
}

// A server that ends each connection at once, or refuses it, must not be dialled in a loop.
func TestConnectionsThatNeverWorkHavePauses(t *testing.T) {
	for name, end := range map[string]End{
		"it ends them":     {Err: io.EOF, Broke: true},
		"it refuses them":  {Err: errors.New("refused")},
		"also if one sent": {Err: errors.New("refused"), Worked: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *fakeClient) {
				ep := c.publish("a")[0]
				c.serve(answers, "a")
				ep.Demand()
				for range 60_000 {
					time.Sleep(time.Millisecond)
					if ep.Connected() {
						cut(ep, end)
					}
				}
				most := 90
				if end.Worked { // each pause is the first one
					most = 6000
				}
				if n := len(c.dialsTo("a")); n > most {
					t.Errorf("in a minute there were %d attempts", n)
				}
			})
		})
	}
}

func TestAnIdleConnectionIsNotReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		ep := c.publish("a")[0]
		c.serve(answers, "a")
		if err := connect(ep); err != nil {
			t.Fatal(err)
		}
		cut(ep, End{Aged: true})
		time.Sleep(time.Minute)
		if n := len(c.dialsTo("a")); n != 1 || ep.Status() != Offline {
			t.Errorf("there were %d attempts, and the endpoint has the status %#x", n, ep.Status())
		}
		if err := connect(ep); err != nil || len(c.dialsTo("a")) != 2 {
			t.Errorf("the next call: %v, after %d attempts", err, len(c.dialsTo("a")))
		}
	})
}

// The error of a call that stopped waiting says how far the attempt has got.
func TestACallThatStopsWaitingSaysForWhat(t *testing.T) {
	const nothing, silence = " of connecting: nothing has answered yet", " of connecting: the server accepted the connection and said nothing"
	for _, test := range []struct {
		server func(context.Context, func()) error
		wait   time.Duration
		want   string
	}{
		{nil, 0, ""},
		{nil, 100 * time.Millisecond, " after 100ms" + nothing},
		{takes(time.Hour), 100 * time.Millisecond, " after 100ms" + silence},
	} {
		for _, alone := range []bool{true, false} {
			inBubble(t, func(t *testing.T, c *fakeClient) {
				ep := c.publish("a")[0]
				c.serve(test.server, "a")
				_, err := ep.Connect(t.Context(), time.Now().Add(test.wait), alone, nil)
				if err == nil || err.Error() != "the deadline passed"+test.want {
					t.Errorf("alone %t: got %v, want %q", alone, err, test.want)
				}
				time.Sleep(c.list.Timeout + time.Second) // the attempt has failed, and the next one has begun
				err = within(ep, 100*time.Millisecond)
				if err == nil || !strings.HasSuffix(err.Error(), "; the attempt before: context deadline exceeded") {
					t.Errorf("alone %t: the next call: %v", alone, err)
				}
			})
		}
	}
}

func TestAnEndpointThatLeavesLetsCallsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		endpoints := c.publish("a", "b")
		c.serve(answers, "a", "b")
		var conns []*fakeConn
		for _, ep := range endpoints {
			if err := connect(ep); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, ep.Conns()[0])
			ep.close(false)
			if _, err := ep.Connect(t.Context(), time.Time{}, true, nil); !errors.Is(err, mux.ErrRetired) {
				t.Errorf("a call to an endpoint that has left fails with %v", err)
			}
		}
		synctest.Wait()
		if !conns[0].whenIdle || !conns[0].Usable() || c.list.Connected() != 0 {
			t.Error("the connection was not left to its calls")
		}
		conns[0].Close() // its calls have ended
		c.cancel()       // the client is closed
		synctest.Wait()
		if conns[1].Usable() {
			t.Error("the end of the client does not end a connection")
		}
		if _, err := endpoints[1].Connect(t.Context(), time.Time{}, true, nil); !errors.Is(err, mux.ErrClosed) {
			t.Errorf("a call on a closed client fails with %v", err)
		}
		if endpoints[0].Go(func(context.Context) {}) {
			t.Error("an endpoint that has left runs functions")
		}
	})
}

func TestAConnectionThatIsMadeForNobodyIsClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		ep := c.publish("a")[0]
		conn := &fakeConn{ended: make(chan struct{})}
		c.list.Connect = func(context.Context, string, bool, func()) (*fakeConn, *reason.DialError) {
			time.Sleep(time.Second)
			return conn, nil
		}
		ep.Demand()
		time.Sleep(time.Millisecond)
		ep.close(false)
		time.Sleep(time.Minute)
		if conn.Usable() || ep.Connected() {
			t.Error("a connection of an endpoint that has left remains")
		}
	})
}

func TestReadinessHasReasons(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		ep := c.publish("a")[0]
		for range 2 {
			ep.SetReady("y", false)
			ep.SetReady("x", false)
		}
		if got := fmt.Sprint(ep.NotReady(), ep.Status()&^Offline, ep.Shunned()); got != "[x y] 2 map[x:1 y:1]" {
			t.Errorf("got %s", got)
		}
		ep.SetReady("x", true)
		ep.SetReady("y", true)
		if got := fmt.Sprint(c.changes); ep.Status() != Offline || got != "[a y false a x false a x true a y true]" {
			t.Errorf("the status is %#x after the changes %s", ep.Status(), got)
		}
		for i := range 2 * maxReasons {
			ep.SetReady(fmt.Sprint(i), false)
		}
		if n := len(ep.Shunned()); n != maxReasons {
			t.Errorf("%d reasons are counted", n)
		}
	})
}
