// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// waitingSetup serves "echo", and "wait", which never replies. Count is called when the context of
// a request of "wait" ends.
func waitingSetup(count func()) *setup {
	limits := defaultLimits()
	limits.MaxOpen, limits.KeepAlive = 1<<17, 0
	return &setup{limits: limits, serves: map[string]*handler{
		"echo": {inline: true, serve: answerEcho},
		"wait": {serve: func(r *mux.Request) {
			r.Later()
			if count != nil {
				r.AfterFunc(count)
			}
		}},
	}}
}

var wait = methodNamed(7, "wait")

// startExpiring starts n calls of "wait" with a deadline, and counts those that end with it.
func startExpiring(t testing.TB, c *mux.Conn, n int, at time.Time, ended *atomic.Int64) {
	t.Helper()
	for range n {
		err := c.Start(context.Background(), &mux.Out{Method: wait, Deadline: at}, completed(func(_ *mux.Answer, err error) {
			if errors.Is(err, mux.ErrDeadline) {
				ended.Add(1)
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A search looks at all one-way requests, which have no order. It does not go on for as long as
// there are many of them.
func TestTheSearchOfManyOneWayRequestsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var canceled atomic.Int64
		c, server := waitingSetup(func() { canceled.Add(1) }).inMemory(t)
		far := time.Now().Add(time.Hour)
		for i := range 6000 {
			at := far
			if i == 3000 {
				at = time.Now().Add(time.Second)
			}
			if err := c.Notify(context.Background(), &mux.Out{Method: wait, Deadline: at}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		if by := server.OneWayBy(); canceled.Load() != 1 || by <= int64(monotime.Now()) {
			t.Errorf("%d requests were canceled, want 1, and the next search is in %v", canceled.Load(), time.Duration(by-int64(monotime.Now())))
		}
	})
}

// Calls and requests that expire at the same moment end in rounds, between which the connection
// serves other calls.
func TestAnExpiringCrowdEndsInRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const crowd = 2000
		var ended, canceled atomic.Int64
		c, _ := waitingSetup(func() { canceled.Add(1) }).inMemory(t)
		at := time.Now().Add(time.Second)
		startExpiring(t, c, crowd, at, &ended)
		time.Sleep(time.Until(at) - time.Nanosecond)
		synctest.Wait()
		if ended.Load()+canceled.Load() != 0 {
			t.Fatalf("%d calls and %d requests ended before their deadline", ended.Load(), canceled.Load())
		}
		rounds := 0
		for last, lastCanceled := int64(0), int64(0); last < crowd || lastCanceled < crowd; rounds++ {
			time.Sleep(mux.SweepPause)
			synctest.Wait()
			n, requests := ended.Load(), canceled.Load()
			// cancellations of the caller end requests too
			if n-last > mux.SweepCalls || requests-lastCanceled > 2*mux.SweepCalls {
				t.Fatalf("a round ended %d calls and %d requests, want at most %d", n-last, requests-lastCanceled, mux.SweepCalls)
			}
			if n == last && requests == lastCanceled {
				t.Fatalf("a round ended nothing: %d calls and %d requests have ended", n, requests)
			}
			last, lastCanceled = n, requests
			mustEcho(t, c, echo, "meanwhile")
		}
		if most := crowd/mux.SweepCalls + 2; rounds > most {
			t.Errorf("%d calls ended in %d rounds, want at most %d", crowd, rounds, most)
		}
	})
}

// A call among many others ends at its deadline, in whatever slot it is.
func TestALateCallAmongManyEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = 20_000
		var first *mux.Request
		s := waitingSetup(nil)
		s.serves["first"] = &handler{serve: func(r *mux.Request) {
			r.Later()
			first = r
		}}
		c, _ := s.inMemory(t)
		freed := make(chan struct{})
		err := c.Start(context.Background(), &mux.Out{Method: methodNamed(8, "first")}, completed(func(*mux.Answer, error) { close(freed) }))
		if err != nil {
			t.Fatal(err)
		}
		var far, ended atomic.Int64
		startExpiring(t, c, others, time.Now().Add(time.Hour), &far)
		at := time.Now().Add(time.Second)
		startExpiring(t, c, 1, at, &ended) // in the last slot
		synctest.Wait()
		first.Finish() // so that the next call gets the first slot
		<-freed
		startExpiring(t, c, 1, at.Add(time.Second), &ended)
		if n := c.Tables(); n.Slots != others+2 {
			t.Fatalf("the last call is not in the first slot: there are %d", n.Slots)
		}
		for i := range int64(2) {
			time.Sleep(time.Until(at) - 1)
			synctest.Wait()
			if n := ended.Load(); n != i {
				t.Fatalf("%d calls have ended before deadline %d", n, i)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if n := ended.Load(); n != i+1 {
				t.Fatalf("%d calls have ended at deadline %d", n, i)
			}
			at = at.Add(time.Second)
		}
		if n := far.Load(); n != 0 {
			t.Errorf("%d calls ended an hour before their deadlines", n)
		}
	})
}

// Calls whose deadlines pass one after the other are not searched for all the time, and yet end
// soon.
func TestManyDeadlinesPassOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, apart = 4000, 10 * time.Microsecond
		const late = 2 * mux.SweepPause
		var ended atomic.Int64
		c, _ := waitingSetup(nil).inMemory(t)
		begin := time.Now()
		due := func(i int) time.Time { return begin.Add(time.Second + time.Duration(i)*apart) }
		for i := range calls {
			startExpiring(t, c, 1, due(i*37%calls), &ended) // each block has deadlines of all times
		}
		for i := 0; i < calls; i += 100 {
			time.Sleep(time.Until(due(i).Add(late)))
			synctest.Wait()
			if n := ended.Load(); n <= int64(i) || n > int64(i+1)+int64(late/apart) {
				t.Fatalf("%d calls have ended %v after the deadline of call %d", n, late, i)
			}
		}
	})
}

// A call on the connection of a crowd that expires at the same moment waits for a round of it, and
// not for all.
func TestACallBesideAnExpiringCrowd(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes most of the time")
	}
	const crowd, tries = 30_000, 4
	for range tries { // another program may hold the processors
		longest, all := besideCrowd(t, crowd)
		if longest < all/8 {
			return
		}
		t.Logf("a call took %v while %d calls expired, which took %v", longest, crowd, all)
	}
	t.Error("want an eighth of that at most")
}

// besideCrowd returns how long the longest of the calls took that were made while n calls expired,
// and how long it took until all n had ended.
func besideCrowd(t *testing.T, n int) (longest, all time.Duration) {
	c, srv := waitingSetup(nil).overTCP(t)
	defer srv.Close()
	defer c.Close()
	mustEcho(t, c, echo, "first")
	var ended atomic.Int64
	at := time.Now().Add(2 * time.Second)
	startExpiring(t, c, n, at, &ended)
	if left := time.Until(at); left < 0 {
		t.Fatalf("starting the calls took %v too long", -left)
	}
	for time.Until(at) > 0 {
		mustEcho(t, c, echo, "before")
	}
	for ended.Load() < int64(n) {
		began := time.Now()
		mustEcho(t, c, echo, "beside")
		longest = max(longest, time.Since(began))
	}
	return longest, time.Since(at)
}
