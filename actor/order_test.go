// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
)

// A cutter is a proxy whose connections can be cut.
type cutter struct {
	l     net.Listener
	to    string
	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{l: l, to: to, conns: make(map[net.Conn]bool)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				conn.Close()
				continue
			}
			c.mu.Lock()
			c.conns[conn], c.conns[far] = true, true
			c.mu.Unlock()
			for _, pair := range [][2]net.Conn{{conn, far}, {far, conn}} {
				running.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
					pair[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		c.cut()
		running.Wait()
	})
	return c
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		conn.Close()
	}
	clear(c.conns)
}

type Numbered struct{ Sender, N int }

// A Witness notes the order of messages.
type Witness struct {
	mu    sync.Mutex // the test reads
	seen  map[int]int
	wrong int
	count int
}

func (w *Witness) Numbered(_ context.Context, m *Numbered) (*struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, ok := w.seen[m.Sender]; ok && m.N <= last {
		w.wrong++
	}
	w.seen[m.Sender] = m.N
	w.count++
	return new(struct{}), nil
}

var witnesses = actor.NewKind("Witness", actor.Answer((*Witness).Numbered))

// Messages of one sender to one actor are handled in the order in which they were sent. Each is
// handled at most once. The connection is lost often, and middleware refuses and delays messages.
func TestOrderHoldsThroughLostConnections(t *testing.T) {
	t.Attr("rerun", "never")
	refuses := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			switch rand.IntN(200) {
			case 0:
				return yodel.Errorf(yodel.ResourceExhausted, "not now")
			case 1:
				<-time.After(time.Millisecond) // so that later messages overtake it
			}
			return next(ctx, call)
		}
	}
	host := actor.NewSystem(&actor.Options{Server: &yodel.ServerOptions{Middleware: []yodel.Middleware{refuses}}, Inbox: 50})
	if err := host.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	defer host.Shutdown(context.Background())
	var lost atomic.Int64
	far := actor.NewSystem(&actor.Options{Window: 100, OnLost: func(actor.Ref, string, error) { lost.Add(1) }})
	defer far.Shutdown(context.Background())
	proxy := newCutter(t, host.Addr())

	var all []*Witness
	var refs []actor.Ref
	for _, name := range []string{"a", "b", "c"} {
		w := &Witness{seen: make(map[int]int)}
		ref, err := witnesses.Start(host, name, w, nil)
		if err != nil {
			t.Fatal(err)
		}
		ref.Addr = proxy.l.Addr().String()
		all, refs = append(all, w), append(refs, ref)
	}
	const n = 1500
	var senders sync.WaitGroup
	var asked, failed atomic.Int64
	for sender := range 4 {
		senders.Go(func() {
			for i := range n {
				to := refs[i%len(refs)]
				if rand.IntN(10) > 0 {
					if err := far.Send(t.Context(), to, &Numbered{sender, i}); err != nil {
						failed.Add(1)
					}
					continue
				}
				asked.Add(1)
				q := actor.Ask[struct{}](t.Context(), far, to, &Numbered{sender, i})
				if rand.IntN(20) == 0 {
					q.Abort(nil)
				}
				go func() {
					if _, err := q.Get(); err != nil {
						lost.Add(1)
					}
				}()
			}
		})
	}
	done := make(chan struct{})
	go func() { senders.Wait(); close(done) }()
	handled := func() (n int) {
		for _, w := range all {
			w.mu.Lock()
			n += w.count
			w.mu.Unlock()
		}
		return n
	}
	cuts, before := 0, 0
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-tick.C:
			if now := handled(); now > before+200 {
				proxy.cut()
				cuts, before = cuts+1, now
			}
			continue
		case <-done:
			tick.Stop()
		}
		break
	}
	for i, w := range all { // everything before has arrived when the answer is there
		for try := 0; ; try++ {
			_, err := actor.AskSync[struct{}](t.Context(), far, refs[i], &Numbered{100, try})
			if err == nil {
				break
			}
			if try == 100 {
				t.Fatal(err)
			}
		}
		w.mu.Lock()
		if w.wrong > 0 {
			t.Errorf("actor %d handled %d messages after later ones, or twice", i, w.wrong)
		}
		w.mu.Unlock()
	}
	t.Logf("%d messages, %d cuts: %d handled, %d lost or in doubt, %d not sent, %d questions", 4*n, cuts, handled(), lost.Load(), failed.Load(), asked.Load())
	if int64(handled())+lost.Load()+failed.Load() < 4*n {
		t.Errorf("%d of %d messages were handled, and %d were said to be lost", handled(), 4*n, lost.Load()+failed.Load())
	}
}

// A Chronicler notes the messages of one direction, over all of its incarnations.
type Chronicler struct {
	of   *chronicle
	last int // of this incarnation
}

type chronicle struct {
	mu      sync.Mutex
	handled map[int]int // how often, by number
	wrong   int         // messages that an incarnation has handled after a later one
}

func (c *Chronicler) Numbered(_ context.Context, m *Numbered) error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if m.N <= c.last {
		c.of.wrong++
	}
	c.last = m.N
	c.of.handled[m.N]++
	return nil
}

var chroniclers = actor.NewKind("Chronicler", actor.On((*Chronicler).Numbered))

func (c *chronicle) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.handled)
}

// An end is a System with a Chronicler that is replaced now and then, and with messages to the one
// of the other end.
type end struct {
	system *actor.System
	got    *chronicle
	to     actor.Ref
	lost   atomic.Int64
}

func (e *end) replace(t *testing.T) actor.Ref {
	t.Helper()
	e.system.Stop(actor.Ref{Addr: e.system.Addr(), Kind: "Chronicler", Name: "chronicler"})
	ref, err := chroniclers.Start(e.system, "chronicler", &Chronicler{of: e.got, last: -1}, nil)
	if err != nil {
		t.Error(err)
	}
	return ref
}

// send sends n messages. One that is certainly not sent, because the other System is not connected,
// is sent again.
func (e *end) send(t *testing.T, n int) {
	for i := range n {
		for e.system.Send(t.Context(), e.to, &Numbered{N: i}) != nil {
			select {
			case <-time.After(time.Millisecond):
			case <-t.Context().Done():
				return
			}
		}
	}
}

// Messages between an actor of a client and one of a server are handled in order and at most once,
// in both directions, while their connection is lost often and both actors are replaced.
func TestOrderHoldsInBothDirections(t *testing.T) {
	t.Attr("rerun", "never")
	ends := [2]*end{}
	for i := range ends {
		e := &end{got: &chronicle{handled: make(map[int]int)}}
		e.system = system(t, i == 0, &actor.Options{Window: 50, OnLost: func(actor.Ref, string, error) { e.lost.Add(1) }})
		ends[i] = e
	}
	server, client := ends[0], ends[1]
	proxy := newCutter(t, server.system.Addr())
	client.to, server.to = server.replace(t), client.replace(t)
	client.to.Addr = proxy.l.Addr().String()
	const n = 1000
	var senders sync.WaitGroup
	for _, e := range ends {
		senders.Go(func() { e.send(t, n) })
	}
	done := make(chan struct{})
	go func() { senders.Wait(); close(done) }()
	cuts, incarnations, before := 0, 1, 0
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-time.After(2 * time.Millisecond):
			// The client has to connect again for the server to send.
			if _, err := client.system.Lookup(t.Context(), client.to.Addr, "chronicler"); err != nil {
				continue
			}
			if now := server.got.count() + client.got.count(); now > before+60 {
				before = now
				if cuts++; cuts%3 == 0 {
					incarnations++
					server.replace(t)
					client.replace(t)
				}
				proxy.cut()
			}
		}
	}
	for _, e := range ends { // until each message is handled, or known to be lost
		other := ends[0]
		if e == other {
			other = ends[1]
		}
		for other.got.count()+int(e.lost.Load()) < n && t.Context().Err() == nil {
			<-time.After(time.Millisecond)
		}
		other.got.mu.Lock()
		twice := 0
		for _, times := range other.got.handled {
			if times > 1 {
				twice++
			}
		}
		if other.got.wrong > 0 || twice > 0 {
			t.Errorf("%s: %d messages were handled after later ones, and %d twice", e.system.Addr(), other.got.wrong, twice)
		}
		t.Logf("%s: %d handled, %d lost or in doubt", e.system.Addr(), len(other.got.handled), e.lost.Load())
		other.got.mu.Unlock()
	}
	if t.Logf("%d cuts, %d incarnations", cuts, incarnations); cuts < 3 || incarnations < 2 {
		t.Errorf("%d cuts and %d incarnations are too few", cuts, incarnations)
	}
}

// A burst of large messages over a new connection, of more bytes than the server allows to be open,
// arrives. The messages do not wait for each other.
func TestABurstOverANewConnectionArrives(t *testing.T) {
	const n = 150
	host := system(t, true, &actor.Options{Server: &yodel.ServerOptions{Limits: yodel.Limits{MaxMemory: 8 << 20, MaxOpen: 20}}})
	ref, err := echoes.Start(host, "echo", &Echo{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		from := system(t, false, &actor.Options{OnLost: func(_ actor.Ref, _ string, err error) { t.Error(err) }})
		for i := range n {
			if err := from.Send(t.Context(), ref, &Number{i}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		sum, err := actor.AskSync[Sum](ctx, from, ref, &Total{})
		cancel()
		if err != nil || len(sum.Numbers) < n {
			t.Fatalf("the actor got %v, %v", sum, err)
		}
	}
}

// A question that waits for a connection ends with its context.
func TestAQuestionDoesNotOutwaitItsContextForAConnection(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	from := system(t, false, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = actor.AskSync[Sum](ctx, from, actor.Ref{Name: "echo", Addr: silent.Addr().String()}, &Total{})
	if took := time.Since(began); yodel.CodeOf(err) != yodel.DeadlineExceeded || took > 2*time.Second {
		t.Errorf("the question ends after %v: %v", took, err)
	}
}
