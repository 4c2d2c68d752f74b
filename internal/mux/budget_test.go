// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/shares"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// newBudget returns a budget, and fails the test whenever more than it is granted.
func newBudget(t testing.TB, open, bytes int) *shares.Budget {
	t.Helper()
	b := shares.New(open, bytes)
	b.Watch(func(granted int) {
		if granted < 0 || granted > open {
			t.Errorf("%d of %d requests are granted", granted, open)
		}
	})
	return b
}

// budgeted is a setup whose server has a budget. "other" runs until release is closed.
func budgeted(b *shares.Budget, release chan struct{}) *setup {
	return &setup{server: mux.Config{Budget: b}, serves: map[string]*handler{
		"echo":  {serve: answerEcho},
		"third": {inline: true, serve: answerEcho},
		"other": {serve: func(r *mux.Request) { <-release; answerEcho(r) }},
	}}
}

// raise makes most at least n.
func raise(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old; old = most.Load() {
		if most.CompareAndSwap(old, n) {
			return
		}
	}
}

// join connects a client over TCP or in memory, as a server would, and returns when the client has
// heard of its limit.
func (s *setup) join(t testing.TB, b *shares.Budget, client, server net.Conn) (c, srv *mux.Conn) {
	t.Helper()
	greeted := make(chan struct{})
	b.Reserve()
	srv = mux.New(server, nil, false, s.config(t, s.server, s.serves))
	c = mux.New(client, nil, true, s.config(t, mux.Config{Hello: func(*mux.Conn, *wire.Limits) *mux.Refusal {
		close(greeted)
		return nil
	}}, nil))
	t.Cleanup(func() {
		c.Close()
		srv.Close()
	})
	<-greeted
	return c, srv
}

func (s *setup) joinTCP(t testing.TB, b *shares.Budget) (c, srv *mux.Conn) {
	t.Helper()
	client, server := tcpPair(t)
	return s.join(t, b, client, server)
}

func (s *setup) joinInMemory(t testing.TB, b *shares.Budget) (c, srv *mux.Conn) {
	t.Helper()
	client, server := memoryPair(0)
	return s.join(t, b, client, server)
}

// openAll begins as many calls as the connection takes, and goes on until ctx ends.
func openAll(ctx context.Context, wg *sync.WaitGroup, c *mux.Conn, m *mux.Method, ended func(err error)) {
	wg.Go(func() {
		for ctx.Err() == nil {
			wg.Add(1)
			err := c.Start(ctx, &mux.Out{Method: m, Body: []byte("x")}, completed(func(_ *mux.Answer, err error) {
				ended(err)
				wg.Done()
			}))
			if err != nil {
				wg.Done()
			}
		}
	})
}

func windows(conns []*mux.Conn) (sum, least, most int) {
	least, _ = conns[0].Window()
	for _, c := range conns {
		n, _ := c.Window()
		sum, least, most = sum+n, min(least, n), max(most, n)
	}
	return sum, least, most
}

// Shares follow membership: they become smaller when connections come and larger when they go, and
// nothing of them is left at the end.
func TestSharesFollowMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, 1600, 1<<30)
		s := budgeted(b, nil)
		var conns []*mux.Conn
		for n := 1; n <= 64; n++ {
			c, _ := s.joinInMemory(t, b)
			conns = append(conns, c)
			time.Sleep(10 * time.Millisecond)
			sum, least, most := windows(conns)
			if sum != b.Granted() || least < 1 || most > 2*least || sum > 1600*3/4 || sum < 1600/4 {
				t.Fatalf("%d idle connections: %d are granted, the windows are %d in sum, between %d and %d", n, b.Granted(), sum, least, most)
			}
		}
		for len(conns) > 0 {
			conns[0].Close()
			conns = conns[1:]
			time.Sleep(10 * time.Millisecond)
			if len(conns) == 0 {
				break
			}
			if sum, least, most := windows(conns); sum != b.Granted() || most > 2*least || sum < 1600/4 {
				t.Fatalf("%d connections are left: %d are granted, the windows are %d in sum, between %d and %d", len(conns), b.Granted(), sum, least, most)
			}
		}
		if n, awake := b.Members(); b.Granted() != 0 || n != 0 || awake {
			t.Errorf("at the end %d are granted to %d connections, and the budget is awake: %t", b.Granted(), n, awake)
		}
	})
}

// Who wants more gets what others do not use, and not what they use.
func TestUnusedSharesGoToWhoNeedsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, 200, 1<<30)
		release := make(chan struct{})
		s := budgeted(b, release)
		idle, _ := s.joinInMemory(t, b)
		time.Sleep(time.Second)
		before, _ := idle.Window()
		hungry, srv := s.joinInMemory(t, b)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		openAll(ctx, &wg, hungry, other, func(error) {})
		time.Sleep(time.Second)
		after, _ := idle.Window()
		if after < 16 || after >= before {
			t.Errorf("the window of an idle connection went from %d to %d", before, after)
		}
		if n := srv.Tables().InOpen; n < 200-16-after-after/8 || n != b.Open() {
			t.Errorf("the other one has %d of 200 open, the budget says %d", n, b.Open())
		}
		mustEcho(t, idle, echo, "not starved")
		cancel()
		close(release)
		wg.Wait()
		time.Sleep(10 * time.Second)
		if _, awake := b.Members(); awake {
			t.Error("the budget looks after connections that do nothing")
		}
		if sum, _, _ := windows([]*mux.Conn{idle, hungry}); sum != b.Granted() {
			t.Errorf("%d are granted, the windows are %d in sum", b.Granted(), sum)
		}
	})
}

// Connections that all want more than there is have equally much, also if that is only a handful
// each or not even one more for all; and when it does not change, nothing is said about it.
func TestHungryConnectionsHaveEqualShares(t *testing.T) {
	for _, test := range []struct {
		total int
		takes time.Duration
	}{{1000, 20 * time.Millisecond}, {100, time.Millisecond}, {40, time.Millisecond}, {27, time.Millisecond}} {
		if raceEnabled {
			test.takes *= 5 // a call takes ten times as long to test then
		}
		synctest.Test(t, func(t *testing.T) {
			const conns = 18
			b := newBudget(t, test.total, 1<<30)
			s := budgeted(b, nil)
			s.serves["echo"] = &handler{serve: func(r *mux.Request) { time.Sleep(test.takes); answerEcho(r) }}
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			var all []*mux.Conn
			var served []*mux.Conn
			counts := make([]atomic.Int64, conns)
			for i := range conns {
				c, srv := s.joinInMemory(t, b)
				all, served = append(all, c), append(served, srv)
				openAll(ctx, &wg, c, echo, func(err error) {
					if err == nil {
						counts[i].Add(1)
					}
				})
			}
			time.Sleep(time.Second + 50*time.Millisecond) // in the middle of a period
			talk := func() (n uint64) {                   // frames that are not replies
				synctest.Wait()
				for i, srv := range served {
					n += srv.Counters().FramesOut - uint64(counts[i].Load())
				}
				return n
			}
			sum, least, most := windows(all)
			for range 20 { // what is on its way from one connection to another is in no window
				if sum >= test.total*3/4 {
					break
				}
				time.Sleep(10 * time.Millisecond)
				sum, least, most = windows(all)
			}
			// Connections joined one after another: what the first ones had before is not compared.
			before := talk()
			base := make([]int64, conns)
			for i := range counts {
				base[i] = counts[i].Load()
			}
			time.Sleep(time.Second)
			if test.total/conns >= 4 && talk() > before+2 {
				t.Errorf("%d: %d frames were sent about limits that need no change", test.total, talk()-before)
			}
			if most > least+least/3+1 || sum < test.total*3/4 {
				t.Errorf("%d: the windows are %d in sum, between %d and %d", test.total, sum, least, most)
			}
			var n, squares float64
			for i := range counts {
				x := float64(counts[i].Load() - base[i])
				n, squares = n+x, squares+x*x
			}
			if index := n * n / conns / squares; index < 0.98 {
				t.Errorf("%d: Jain index %.3f", test.total, index)
			}
			cancel()
			wg.Wait()
			time.Sleep(time.Second) // the handlers end
		})
	}
}

// creditAndPing reads a lower limit and the ping behind it.
func creditAndPing(p *rawPeer) (w wire.Window, ping []byte) {
	p.t.Helper()
	_, frame := p.expect(wire.Credit)
	if err := wire.ParseCredit(frame[wire.HeaderSize:], &w); err != nil {
		p.t.Fatal(err)
	}
	_, frame = p.expect(wire.Ping)
	return w, frame[wire.HeaderSize:]
}

// What a connection has less is others' only when its peer has obeyed: until then requests may come
// that were sent before.
func TestALowerLimitWaitsForThePong(t *testing.T) {
	b := newBudget(t, 160, 1<<30)
	release := make(chan struct{})
	s := budgeted(b, release)
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "other"))
	first := int(peer.expectHello().MaxOpen)
	peer.expect(wire.MethodInfo)
	if first != 75 { // half of what is not kept free
		t.Fatalf("the first of all connections may have %d open", first)
	}
	hungry, _ := s.joinTCP(t, b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	openAll(ctx, &wg, hungry, other, func(error) {})

	w, ping := creditAndPing(peer)
	if int(w.MaxOpen) >= first/2+2 {
		t.Errorf("the limit was lowered from %d to %d", first, w.MaxOpen)
	}
	// The peer has not read that yet.
	for i := range first {
		peer.write(request(0, callID(uint32(i), 1), ""))
	}
	eventually(t, "all are accepted that were allowed", func() bool { return srv.Tables().InOpen == first })
	if n, _ := hungry.Window(); n+first > 160 {
		t.Errorf("the others may have %d open while %d are", n, first)
	}
	peer.write(frameOf(wire.Header{Type: wire.Pong}, nil, ping))
	close(release)
	for range first {
		if h, _ := peer.expect(wire.Reply); h.Arg != 0 {
			t.Fatalf("got %+v: a request that had been allowed was refused", h)
		}
	}
	cancel()
	wg.Wait()
	hungry.Close()
	wantEmpty(t, "the server", srv)
	peer.nc.Close()
	eventually(t, "everything is given back", func() bool { n, _ := b.Members(); return n == 0 && b.Granted() == 0 })
}

// Without the pong, nothing is given to others; with it, everything.
func TestThePongFreesTheRest(t *testing.T) {
	b := newBudget(t, 160, 1<<30)
	release := make(chan struct{})
	s := budgeted(b, release)
	peer, _ := s.facingServer(t)
	peer.write(hello(nil))
	first := int(peer.expectHello().MaxOpen)
	hungry, _ := s.joinTCP(t, b)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	openAll(ctx, &wg, hungry, other, func(error) {})
	w, ping := creditAndPing(peer)
	eventually(t, "the other one has all that is left", func() bool { n, _ := hungry.Window(); return n+first == 150 })
	for w.MaxOpen > 16 { // it may come in several steps, each after the pong of the one before
		peer.write(frameOf(wire.Header{Type: wire.Pong}, nil, ping))
		w, ping = creditAndPing(peer)
	}
	peer.write(frameOf(wire.Header{Type: wire.Pong}, nil, ping))
	eventually(t, "the other one has the rest", func() bool { n, _ := hungry.Window(); return n+int(w.MaxOpen) == 150 })
	cancel()
	close(release)
	wg.Wait()
}

// A peer that has not heard of its limit is allowed what is free but for the reserve, and refused
// what is not.
func TestTheBudgetRefusesWhatItCannotBear(t *testing.T) {
	for _, test := range []struct {
		name        string
		open, bytes int
		want        int // requests of 1000 bytes
	}{{"requests", 11, 1 << 30, 10}, {"bytes", 1000, 70_000, 70}} {
		t.Run(test.name, func(t *testing.T) {
			b := newBudget(t, test.open, test.bytes)
			release := make(chan struct{})
			s := budgeted(b, release)
			peer, srv := s.facingServer(t)
			peer.write(hello(nil), method(0, "other"))
			peer.expectHello()
			peer.expect(wire.MethodInfo)
			for i := range test.want + 5 {
				peer.write(request(0, callID(uint32(i), 1), strings.Repeat("x", 1000)))
			}
			skip := func() (wire.Header, []byte) { // what is said about limits
				for {
					h, frame, err := peer.frame()
					if err != nil {
						t.Fatal(err)
					}
					if h.Type != wire.Credit && h.Type != wire.Ping {
						return h, frame
					}
				}
			}
			for i := range 5 {
				h, frame := skip()
				if h.ID != callID(uint32(test.want+i), 1) || h.Arg != codeExhausted || h.Flags&wire.NotProcessed == 0 {
					t.Errorf("got %+v %q, want a refusal of request %d", h, frame, test.want+i)
				}
			}
			if n := srv.Tables().InOpen; n != test.want {
				t.Errorf("%d requests are open, want %d", n, test.want)
			}
			close(release)
			for range test.want {
				if h, _ := skip(); h.Arg != 0 {
					t.Errorf("got %+v, want a reply", h)
				}
			}
			wantEmpty(t, "the server", srv)
			peer.nc.Close()
			eventually(t, "everything is given back", func() bool { return b.Granted() == 0 })
		})
	}
}

// What a lost connection has been granted is given back with its end, but for what is still
// executed.
func TestALostConnectionGivesItsShareBack(t *testing.T) {
	b := newBudget(t, 100, 1<<30)
	release := make(chan struct{})
	s := budgeted(b, release)
	c, srv := s.joinTCP(t, b)
	mustEcho(t, c, echo, "first")
	var ends []<-chan calling
	for range 5 {
		ends = append(ends, startCall(c, context.Background(), &mux.Out{Method: other}))
	}
	eventually(t, "the handlers run", func() bool { return srv.Tables().InOpen == 5 })
	if b.Granted() < 40 {
		t.Fatalf("%d are granted", b.Granted())
	}
	c.Abort()
	for _, end := range ends {
		within(t, "the call ends", end)
	}
	eventually(t, "what is not executed is given back", func() bool { return b.Granted() == 5 && b.Open() == 5 })
	close(release)
	eventually(t, "everything is given back", func() bool { n, _ := b.Members(); return b.Granted() == 0 && n == 0 })
}

// The limit of bytes is the same share of all bytes. A request that is larger is sent when nothing
// else is open.
func TestBytesAreSharedToo(t *testing.T) {
	b := newBudget(t, 64, 4<<20)
	s := budgeted(b, nil)
	var conns []*mux.Conn
	for range 10 {
		c, _ := s.joinTCP(t, b)
		mustEcho(t, c, echo, "first")
		conns = append(conns, c)
	}
	eventually(t, "bytes are shared", func() bool {
		for _, c := range conns {
			if n, bytes := c.Window(); n > 6 || bytes > 6*64<<10 || bytes < 64<<10 {
				return false
			}
		}
		return true
	})
	var wg sync.WaitGroup
	for _, c := range conns {
		for range 5 {
			wg.Go(func() {
				for _, size := range []int{1, 100_000, 3 << 20, 10, 400_000} {
					mustEcho(t, c, echo, string(filled('x', size)))
				}
			})
		}
	}
	wg.Wait()
}

// A connection whose window of bytes is full gets more of them, though it has few requests open.
func TestLargeRequestsMakeHungryToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, 1600, 16<<20)
		release := make(chan struct{})
		s := budgeted(b, release)
		for range 9 {
			s.joinInMemory(t, b)
		}
		c, srv := s.joinInMemory(t, b)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		body := filled('x', 300_000)
		for range 50 {
			wg.Go(func() {
				a, err := c.Call(ctx, &mux.Out{Method: other, Body: body})
				if err == nil {
					a.Release()
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		before := srv.Tables().InBytes
		time.Sleep(2 * time.Second)
		if after := srv.Tables().InBytes; before > 1<<20 || after < 10<<20 {
			t.Errorf("%d bytes were open at first, and %d later", before, after)
		}
		close(release)
		wg.Wait()
		cancel()
	})
}

// One-way requests are not counted by who sends them: the reading waits when there are as many as
// were granted.
func TestOneWayRequestsAreWithinTheBudget(t *testing.T) {
	b := newBudget(t, 64, 1<<30)
	release := make(chan struct{})
	var running, most, ran atomic.Int64
	s := budgeted(b, release)
	s.serves["other"] = &handler{serve: func(*mux.Request) {
		n := running.Add(1)
		raise(&most, n)
		<-release
		running.Add(-1)
		ran.Add(1)
	}}
	var wg sync.WaitGroup
	for range 4 {
		c, _ := s.joinTCP(t, b)
		wg.Go(func() {
			for range 100 {
				if err := c.Notify(context.Background(), &mux.Out{Method: other}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "some run", func() bool { return running.Load() >= 32 })
	close(release)
	eventually(t, "all have run", func() bool { return ran.Load() == 400 })
	if n := most.Load(); n > 64 {
		t.Errorf("%d ran at once, the budget is 64", n)
	}
}

// openMany opens as many calls of "other" as the connection takes, and returns how many the server
// has open.
func openMany(ctx context.Context, wg *sync.WaitGroup, c, srv *mux.Conn) func() int {
	openAll(ctx, wg, c, other, func(error) {})
	return func() int { return srv.Tables().InOpen }
}

// A client whose requests do not end leaves the others the reserve, which they divide: each one
// that comes has its part when its need has been measured once, after 100 ms.
func TestNewClientsShareTheReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total, reserve = 16384, 1024
		b := newBudget(t, total, 1<<30)
		release := make(chan struct{})
		s := budgeted(b, release)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		hog, hogSrv := s.joinInMemory(t, b)
		open := openMany(ctx, &wg, hog, hogSrv)
		time.Sleep(3 * time.Second)
		if n := open(); n != total-reserve {
			t.Fatalf("the first client has %d requests open, want all but the reserve, %d", n, total-reserve)
		}
		for i, want := range []int{reserve / 2, reserve / 3, reserve / 8} {
			before := time.Now()
			c, srv := s.joinInMemory(t, b)
			if took := time.Since(before); took > 0 {
				t.Errorf("new client %d waited %v for its first share", i, took)
			}
			open := openMany(ctx, &wg, c, srv)
			time.Sleep(110 * time.Millisecond)
			if n := open(); n < want {
				t.Errorf("new client %d has %d requests open after 110 ms, want %d", i, n, want)
			}
		}
		cancel()
		close(release)
		wg.Wait()
		time.Sleep(10 * time.Second)
	})
}

// A peer that ignores its window is refused what exceeds it, from when it has answered a ping on,
// and before that what exceeds the 1024 requests that it may send before the settings have come.
func TestAPeerThatIgnoresItsWindowIsRefused(t *testing.T) {
	const total = 16384
	for _, pongs := range []bool{false, true} {
		b := newBudget(t, total, 1<<30)
		release := make(chan struct{})
		s := budgeted(b, release)
		peer, srv := s.facingServer(t)
		peer.write(hello(nil), method(0, "other"))
		told := int(peer.expectHello().MaxOpen)
		if told >= total/2 {
			t.Fatalf("the first of all connections may have %d requests open", told)
		}
		var refused atomic.Int64
		var reading sync.WaitGroup
		reading.Go(func() {
			for {
				h, frame, err := peer.frame()
				if err != nil {
					return
				}
				switch {
				case h.Type == wire.Ping && pongs:
					_, _ = peer.nc.Write(frameOf(wire.Header{Type: wire.Pong}, nil, frame[wire.HeaderSize:]))
				case h.Type == wire.Reply && h.Arg == codeExhausted && h.Flags&wire.NotProcessed != 0:
					refused.Add(1)
				}
			}
		})
		for i := range total {
			peer.write(request(0, callID(uint32(i), 1), ""))
		}
		eventually(t, "every request is executed or refused", func() bool { return srv.Tables().InOpen+int(refused.Load()) == total })
		n := srv.Tables().InOpen
		t.Logf("of %d requests %d were executed; the peer had been told %d", total, n, told)
		if n > total-total/16 {
			t.Errorf("of %d requests %d were executed, which is more than all but the reserve", total, n)
		}
		close(release)
		_ = peer.nc.Close()
		reading.Wait()
		wantEmpty(t, "the server", srv)
	}
}

// What a peer has been told to give up, and does not use, is others' after a while, also when the
// peer does not answer the ping.
func TestAPeerThatAnswersNoPingLosesItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, 160, 1<<30)
		release := make(chan struct{})
		s := budgeted(b, release)
		client, server := memoryPair(0)
		silent := mux.New(server, nil, false, s.config(t, s.server, s.serves))
		defer silent.Close()
		_, _ = client.Write(hello(nil))
		go func() { _, _ = io.Copy(io.Discard, client) }()
		synctest.Wait()
		c, srv := s.joinInMemory(t, b)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		open := openMany(ctx, &wg, c, srv)
		for range 25 { // what keeps the connection from being dead
			time.Sleep(time.Second)
			_, _ = client.Write(ping(1))
		}
		before := open()
		for range 10 {
			time.Sleep(time.Second)
			_, _ = client.Write(ping(1))
		}
		if after := open(); before > 90 || after < 120 {
			t.Errorf("the other client had %d requests open at first, and %d after 35 s, want about 75 and more than 120", before, after)
		}
		cancel()
		close(release)
		wg.Wait()
		time.Sleep(10 * time.Second)
	})
}

// One-way requests whose client has left take no room from others. Their contexts end after a
// while, and soon when there are many.
func TestOneWayRequestsOfClientsThatLeftEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total = 1600
		b := newBudget(t, total, 1<<30)
		release := make(chan struct{})
		s := budgeted(b, release)
		var ended, running atomic.Int64
		s.serves["third"] = &handler{serve: func(r *mux.Request) {
			running.Add(1)
			<-r.Done()
			ended.Add(1)
		}}
		leaver, leaverSrv := s.joinInMemory(t, b)
		ctx, cancel := context.WithCancel(context.Background())
		for range 2 * total {
			if err := leaver.Notify(ctx, &mux.Out{Method: third}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		n := running.Load()
		if n < total/2 {
			t.Fatalf("%d one-way requests run", n)
		}
		leaver.Abort()
		<-leaverSrv.Ended()
		time.Sleep(400 * time.Millisecond)
		if ended.Load() != 0 {
			t.Errorf("%d one-way requests were ended at once: those that are short end by themselves", ended.Load())
		}
		time.Sleep(200 * time.Millisecond)
		if left := n - ended.Load(); left != total/4 {
			t.Errorf("of %d one-way requests %d go on when their client has left, want %d", n, left, total/4)
		}
		if n := b.Granted(); n != 0 {
			t.Errorf("%d places are granted when the only client has left", n)
		}
		c, srv := s.joinInMemory(t, b)
		var wg sync.WaitGroup
		open := openMany(ctx, &wg, c, srv)
		time.Sleep(200 * time.Millisecond)
		if n := open(); n != total-total/16 {
			t.Errorf("the next client has %d requests open, want all but the reserve, %d", n, total-total/16)
		}
		time.Sleep(29 * time.Second)
		if ended.Load() == n {
			t.Error("all one-way requests have ended before their time")
		}
		time.Sleep(time.Second)
		if left := n - ended.Load(); left != 0 {
			t.Errorf("%d one-way requests still run 30 s after their client has left", left)
		}
		cancel()
		close(release)
		wg.Wait()
		time.Sleep(10 * time.Second)
	})
}

// Clients come, go, are cut off, call much and little. Nobody's call is refused, the sum is never
// exceeded, and it is exactly zero at the end.
func TestTheBudgetUnderChange(t *testing.T) {
	const total = 640 // its reserve, a sixteenth, exceeds the number of connections
	b := newBudget(t, total, 8<<20)
	var open, most atomic.Int64
	s := budgeted(b, nil)
	s.serves["echo"] = &handler{serve: func(r *mux.Request) {
		n := open.Add(1)
		raise(&most, n)
		<-time.After(time.Duration(rand.N(300)) * time.Microsecond)
		open.Add(-1)
		answerEcho(r)
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c, srv := s.joinTCP(t, b)
				life, end := context.WithTimeout(ctx, rand.N(400*time.Millisecond))
				var calls sync.WaitGroup
				for range rand.N(3) * rand.N(80) {
					calls.Go(func() {
						for life.Err() == nil {
							code, _, err := callOut(context.Background(), c, &mux.Out{Method: echo, Body: filled('x', rand.N(2)*rand.N(20_000))})
							if code != 0 || err != nil && !errors.Is(err, mux.ErrClosed) && c.Err() == nil {
								t.Errorf("code %d, error %v", code, err)
							}
						}
					})
				}
				<-life.Done()
				if rand.N(2) == 0 {
					c.Abort()
				}
				calls.Wait()
				c.Close()
				srv.Close()
				end()
			}
		})
	}
	wg.Wait()
	eventually(t, "everything is given back", func() bool { n, _ := b.Members(); return n == 0 && b.Granted() == 0 })
	if n := most.Load(); n > total {
		t.Errorf("%d requests were executed at once, the budget is %d", n, total)
	}
}

// A caller may be let go ahead just before a lower limit is heard of. It waits again: the answer to
// the ping behind the limit says that no such request follows.
func TestCallersThatWereAdmittedHeedALowerLimit(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that the reader is through before the callers wake
	heeded := 0
	for try := 0; try < 20 || heeded == 0 && try < 400; try++ { // it takes chance
		peer, c, ids, ends := fullWindow(t, new(setup), 3)
		for range 6 {
			ends = append(ends, startCall(c, context.Background(), &mux.Out{Method: echo, Body: []byte("waiting")}))
		}
		waiting(t, c, 6)
		peer.write(reply(ids[0], ""), reply(ids[1], ""), reply(ids[2], ""), wire.AppendCredit(nil, 0, 0, &wire.Window{MaxOpen: 1}), ping(7))
		var open []uint32
		for pongs := 0; pongs == 0 || len(open) == 0; {
			h, _, err := peer.frame()
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case h.Type == wire.Pong:
				pongs++
				if len(open) < 3 {
					heeded++
				}
			case pongs > 0 && len(open) > 0:
				t.Fatalf("request %#x came behind the pong, while %d were open", h.ID, len(open))
			default:
				open = append(open, h.ID)
			}
		}
		for left := 6 - len(open); len(open) > 0 || left > 0; {
			if len(open) == 0 {
				h, _ := peer.expect(wire.Request)
				open, left = append(open, h.ID), left-1
			}
			peer.write(ping(8)) // what comes before the pong came while one was open
			if h, _, err := peer.frame(); err != nil || h.Type != wire.Pong {
				t.Fatalf("got %+v, %v while %d were open", h, err, len(open))
			}
			peer.write(reply(open[0], ""))
			open = open[1:]
		}
		for _, end := range ends {
			if got := within(t, "the call ends", end); got.err != nil {
				t.Error(got.err)
			}
		}
		wantEmpty(t, "the client", c)
		c.Close()
	}
	if heeded == 0 {
		t.Error("no caller was between being admitted and being sent: the test did not test anything")
	}
}
