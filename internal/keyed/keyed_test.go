// SPDX-License-Identifier: Apache-2.0

package keyed_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/keyed"
)

// A call is an asynchronous ordered call in a world.
type call struct {
	keyed.Turn[int, int]

	w      *world
	number int
	how    keyed.Landing // of the last attempt
	gaveUp bool
	repeat bool // it is sent again when its outcome is unknown, if it may be, or when it has failed
	err    error
}

// Conclude implements keyed.Owner.
func (c *call) Conclude() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.concluded = append(c.w.concluded, c)
	if c.w.held != nil {
		<-c.w.held
	}
}

// A request is an attempt of a call on a connection.
type request struct {
	of        *call
	epoch     uint64
	abandoned bool
}

// A world is a client, whose calls have one key, and its connections to servers. A server executes
// the requests of a connection in their order. When it has refused one, it refuses the others of
// the same epoch.
type world struct {
	lines  keyed.Lines[int, int]
	random *rand.Rand

	mu        sync.Mutex
	conns     map[int][]*request // in flight, by connection
	newest    int                // the newest connection
	refused   map[int]uint64     // by connection: the epoch of which a request was refused
	executed  []int              // the numbers of calls, as they were executed
	concluded []*call
	over      map[int]bool  // connections that were cut
	severed   int           // calls that failed because of an earlier one
	stale     []int         // calls that were sent where they had to be refused
	held      chan struct{} // if not nil, callbacks wait until it is closed
	followed  int           // attempts that were sent behind another one
	ended     sync.WaitGroup
}

func newWorld(seed uint64) *world {
	w := &world{random: rand.New(rand.NewPCG(seed, 1)), conns: map[int][]*request{}, refused: map[int]uint64{}, over: map[int]bool{}}
	w.lines.Limit = 1 << 20
	w.lines.New = func() *keyed.Turn[int, int] {
		c := &call{w: w}
		c.Owner = c
		return &c.Turn
	}
	return w
}

// begin makes the next call.
func (w *world) begin(t *testing.T, number int) {
	turn, err := w.lines.Enter(t.Context(), "key", true)
	if err != nil {
		t.Fatal(err)
	}
	c := turn.Owner.(*call)
	c.number, c.repeat = number, w.random.IntN(2) == 0
	w.ended.Go(func() {
		c.carryOut(t.Context())
		c.Finish(c.gaveUp)
	})
}

// carryOut sends a call until it has an outcome.
func (c *call) carryOut(ctx context.Context) {
	for tries := 1; ; tries++ {
		if _, c.err = c.Await(ctx, time.Time{}, nil, 0); c.err != nil {
			return
		}
		if !c.Follows() {
			c.w.mu.Lock()
			c.w.newest++
			conn := c.w.newest
			c.w.mu.Unlock()
			c.Board(conn%3+1, conn)
		}
		conn, epoch, attempt := c.Route(false)
		c.w.mu.Lock()
		if c.Follows() {
			c.w.followed++
		}
		if c.w.over[conn] || c.w.refused[conn] == epoch {
			c.w.stale = append(c.w.stale, c.number)
		}
		c.w.conns[conn] = append(c.w.conns[conn], &request{of: c, epoch: epoch})
		c.w.mu.Unlock()
		c.WasSent(attempt)
		c.Result()
		again := false
		switch c.how {
		case keyed.Succeeded:
		case keyed.Executed:
			again = c.repeat && tries < 3
		case keyed.Refused:
			again = true
		case keyed.Lost:
			again = c.repeat && c.MayRepeat(false)
		}
		if c.gaveUp || !again {
			return
		}
	}
}

// busy returns the connections with requests in flight, sorted.
func (w *world) busy() (conns []int) {
	for conn, requests := range w.conns {
		if len(requests) > 0 {
			conns = append(conns, conn)
		}
	}
	slices.Sort(conns)
	return conns
}

// land ends the first request of a connection.
func (w *world) land(conn int, how keyed.Landing) {
	r := w.conns[conn][0]
	w.conns[conn] = w.conns[conn][1:]
	if r.abandoned {
		r.of.Gone(how, false)
		return
	}
	r.of.how = how
	r.of.Land(how, false, !r.of.repeat, keyed.Sender)
}

// reply executes or refuses the first request of a connection.
func (w *world) reply(conn int) {
	r := w.conns[conn][0]
	if w.refused[conn] == r.epoch || w.random.IntN(8) == 0 {
		w.refused[conn] = r.epoch
		w.land(conn, keyed.Refused)
		return
	}
	w.executed = append(w.executed, r.of.number)
	w.land(conn, keyed.Landing(w.random.IntN(2))) // Succeeded or Executed
}

// cut ends a connection. Some requests have been executed, some may have been, and the others have
// not.
func (w *world) cut(conn int) {
	n := len(w.conns[conn])
	w.over[conn] = true
	lost := w.random.IntN(n + 1)
	executed := w.random.IntN(lost + 1)
	for i := range n {
		how := keyed.Refused
		if i < lost {
			how = keyed.Lost
		}
		if r := w.conns[conn][0]; i < executed && w.refused[conn] != r.epoch {
			w.executed = append(w.executed, r.of.number)
		}
		w.land(conn, how)
	}
}

// abandon makes the caller of a request give up.
func (w *world) abandon(conn int) {
	r := w.conns[conn][w.random.IntN(len(w.conns[conn]))]
	if r.abandoned {
		return
	}
	r.abandoned, r.of.gaveUp = true, true
	r.of.Land(keyed.Lost, true, !r.of.repeat, keyed.Sender)
}

// run makes calls while requests end in every way, and checks what must hold.
func (w *world) run(t *testing.T, calls int) {
	t.Attr("rerun", "never")
	made := 0
	for {
		synctest.Wait()
		conns := w.busy()
		if made == calls && len(conns) == 0 {
			break
		}
		dice := w.random.IntN(20)
		switch {
		case made < calls && (dice < 10 || len(conns) == 0):
			made++
			w.begin(t, made)
		case dice == 19:
			w.cut(conns[w.random.IntN(len(conns))])
		case dice == 18:
			w.abandon(conns[w.random.IntN(len(conns))])
		case len(conns) > 0:
			w.reply(conns[w.random.IntN(len(conns))])
		}
	}
	w.ended.Wait()
	if !slices.IsSorted(w.executed) {
		t.Errorf("executed out of order: %v", w.executed)
	}
	if len(w.stale) > 0 {
		t.Errorf("calls %v were sent to a connection or in an epoch that had ended", w.stale)
	}
	var numbers []int
	for _, c := range w.concluded {
		if !c.gaveUp {
			numbers = append(numbers, c.number)
		}
		if errors.Is(c.err, keyed.ErrSevered) {
			w.severed++
		}
		ran := slices.Contains(w.executed, c.number)
		switch good := c.err == nil && !c.gaveUp && (c.how == keyed.Succeeded || c.how == keyed.Executed); {
		case good && !ran:
			t.Errorf("call %d has an outcome, and was not executed", c.number)
		case errors.Is(c.err, keyed.ErrSevered) && ran && !c.repeat:
			t.Errorf("call %d was executed, and failed because of an earlier one", c.number)
		}
	}
	if !slices.IsSorted(numbers) {
		t.Errorf("concluded out of order: %v", numbers)
	}
	if len(w.concluded) != calls || w.lines.Len() != 0 {
		t.Errorf("%d of %d calls were concluded, %d keys are left", len(w.concluded), calls, w.lines.Len())
	}
}

func TestOrderHoldsHoweverRequestsEnd(t *testing.T) {
	t.Attr("rerun", "never")
	followed, repeated, severed := 0, 0, 0
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(seed)
			w.run(t, 40)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
			followed += w.followed
			severed += w.severed
			repeated += len(w.executed) - len(slices.Compact(w.executed))
		})
	}
	if followed < 300 || repeated == 0 || severed == 0 {
		t.Errorf("%d attempts followed another one, %d calls were executed twice, %d failed because of an earlier one: "+
			"the test shows too little", followed, repeated, severed)
	}
}

// A call waits for those before it, and its wait ends with its context, its deadline or the client.
func TestWaitsEnd(t *testing.T) {
	errOver := errors.New("over")
	tests := []struct {
		name string
		wait func(ctx context.Context, c *call) error
		want error
	}{
		{"context", func(ctx context.Context, c *call) error {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Second, func() { cancel(errOver) })
			_, err := c.Await(ctx, time.Time{}, nil, 0)
			return err
		}, errOver},
		{"deadline", func(ctx context.Context, c *call) error {
			_, err := c.Await(ctx, time.Now().Add(time.Second), nil, 0)
			return err
		}, keyed.ErrDeadline},
		{"client", func(ctx context.Context, c *call) error {
			closing := make(chan struct{})
			time.AfterFunc(time.Second, func() { close(closing) })
			_, err := c.Await(ctx, time.Time{}, closing, 0)
			return err
		}, keyed.ErrClosed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				first, _ := w.lines.Enter(context.Background(), "key", true)
				second, _ := w.lines.Enter(context.Background(), "key", true)
				err := test.wait(t.Context(), second.Owner.(*call))
				interrupted, ok := errors.AsType[*keyed.Interrupted](err)
				if !ok || !errors.Is(interrupted.Cause, test.want) || second.Stood() != time.Second {
					t.Errorf("got %v after %v, want %v", err, second.Stood(), test.want)
				}
				first.Finish(true)
				second.Finish(true)
				if w.lines.Len() != 0 {
					t.Error("the key is not forgotten")
				}
			})
		})
	}
}

// Asynchronous calls wait while as many outcomes as the limit allows wait for callbacks.
func TestOutcomesThatWaitAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.lines.Limit = 2
		w.held = make(chan struct{})
		var turns []*keyed.Turn[int, int]
		for range 3 {
			next, _ := w.lines.Enter(t.Context(), "key", true)
			turns = append(turns, next)
		}
		go turns[0].Finish(false) // its callback takes long
		synctest.Wait()
		turns[2].Finish(false)
		turns[1].Finish(false)
		last := make(chan *keyed.Turn[int, int])
		go func() {
			turn, _ := w.lines.Enter(context.Background(), "key", true)
			last <- turn
		}()
		synctest.Wait()
		select {
		case <-last:
			t.Error("a call entered a line that is full")
		default:
		}
		close(w.held)
		(<-last).Finish(false)
		synctest.Wait()
		if len(w.concluded) != 4 || w.lines.Len() != 0 {
			t.Errorf("%d calls were concluded, %d keys are left", len(w.concluded), w.lines.Len())
		}
	})
}

// A call that is made before the caller of a lost call is told is not sent: the lost call may still
// be executing. One that is made afterwards begins anew.
func TestCallsMadeBeforeALossIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		enter := func() *keyed.Turn[int, int] {
			turn, _ := w.lines.Enter(t.Context(), "key", true) // it waits for nothing
			return turn
		}
		send := func(turn *keyed.Turn[int, int]) {
			if _, err := turn.Await(t.Context(), time.Time{}, nil, 0); err != nil {
				t.Fatal(err)
			}
			if !turn.Follows() {
				turn.Board(1, 1)
			}
			_, _, attempt := turn.Route(false)
			turn.WasSent(attempt)
		}
		first, lost := enter(), enter()
		send(first)
		send(lost)
		lost.Land(keyed.Lost, false, false, keyed.Caller)
		lost.Finish(false)
		first.Land(keyed.Succeeded, false, true, keyed.Caller)
		if turn, _ := w.lines.Embark("key", 0, 1, 2); turn != nil {
			t.Error("a call was sent at once before the loss was told")
		}
		early := enter()
		if _, err := early.Await(t.Context(), time.Time{}, nil, 0); !errors.Is(err, keyed.ErrSevered) {
			t.Errorf("a call made before the loss was told: got %v", err)
		}
		early.Finish(false)
		first.Finish(false) // tells all three
		late := enter()
		send(late)
		late.Land(keyed.Succeeded, false, true, keyed.Caller)
		late.Finish(false)
		if len(w.concluded) != 4 || w.lines.Len() != 0 {
			t.Errorf("%d calls were concluded, %d keys are left", len(w.concluded), w.lines.Len())
		}
	})
}

// A request that is being sent may be in the output already, before WasSent says so. An earlier
// call that has failed meanwhile does not follow it on the connection: the later call would be
// executed between the two executions of the earlier one.
func TestACallIsNotRepeatedBehindOneThatIsBeingSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		var turns [2]*keyed.Turn[int, int]
		for i := range turns {
			turns[i], _ = w.lines.Enter(t.Context(), "key", true) // it waits for nothing
		}
		earlier, later := turns[0], turns[1]
		await := func(turn *keyed.Turn[int, int]) error {
			_, err := turn.Await(t.Context(), time.Time{}, nil, 0)
			return err
		}
		if err := await(earlier); err != nil {
			t.Fatal(err)
		}
		earlier.Board(1, 1)
		_, _, attempt := earlier.Route(false)
		earlier.WasSent(attempt)
		if err := await(later); err != nil {
			t.Fatal(err)
		}
		_, _, attempt = later.Route(false) // and its request is in the output
		earlier.Land(keyed.Executed, false, false, keyed.Caller)
		again := make(chan error, 1)
		go func() { again <- await(earlier) }()
		synctest.Wait()
		select {
		case err := <-again:
			t.Fatalf("the earlier call was sent behind the later one: %v", err)
		default:
		}
		later.WasSent(attempt)
		later.Land(keyed.Succeeded, false, true, keyed.Caller)
		if err := <-again; !errors.Is(err, keyed.ErrOvertaken) {
			t.Errorf("after the later call was executed, the earlier one gets %v", err)
		}
		earlier.Finish(false)
		later.Finish(false)
		if len(w.concluded) != 2 || w.lines.Len() != 0 {
			t.Errorf("%d calls were concluded, %d keys are left", len(w.concluded), w.lines.Len())
		}
	})
}
