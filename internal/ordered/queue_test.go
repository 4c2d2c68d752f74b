// SPDX-License-Identifier: Apache-2.0

package ordered_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/ordered"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// The answers to requests.
var (
	good    = &mux.Answer{}
	failed  = &mux.Answer{Code: 13}
	refused = &mux.Answer{Code: 14, Flags: wire.NotProcessed}
)

// errLost is the error of a request that may have been executed.
var errLost error = &mux.CallError{Cause: errors.New("the connection was lost")}

// A failure is the error of an attempt that got an answer.
type failure struct{ *mux.Answer }

func (failure) Error() string { return "failed" }

func isRefused(err error) bool {
	f, ok := errors.AsType[failure](err)
	return ok && f.Flags&wire.NotProcessed != 0
}

// isSevered reports whether err says that an earlier call was interrupted.
func isSevered(err error) bool { return err != nil && strings.Contains(err.Error(), "was interrupted") }

// A call is an ordered call in a world.
type call struct {
	ordered.Turn[int, int]

	w       *world
	number  int
	gaveUp  bool
	repeat  bool // it is sent again when its outcome is unknown, if it may be, or when it has failed
	err     error
	resumed []error
	dropped []error
	connect func()       // runs before Connect; may be nil
	send    func() error // replaces sending; may be nil
	land    func()       // runs when an answer comes; may be nil
}

// Connect implements ordered.Sender.
func (c *call) Connect(context.Context, int) (int, error) {
	if c.connect != nil {
		c.connect()
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.newest++
	return c.w.newest, nil
}

// Send implements ordered.Sender.
func (c *call) Send(_ context.Context, _, conn int, epoch uint64, to mux.Completer) error {
	if c.send != nil {
		if err := c.send(); err != nil {
			return err
		}
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.Follows() {
		c.w.followed++
	}
	if c.w.over[conn] || c.w.refused[conn] == epoch {
		c.w.stale = append(c.w.stale, c.number)
	}
	c.w.conns[conn] = append(c.w.conns[conn], &request{of: c, epoch: epoch, to: to})
	return nil
}

// Land implements ordered.Owner.
func (c *call) Land(a *mux.Answer, err error) error {
	if c.land != nil {
		c.land()
	}
	if err == nil && a.Code != 0 {
		return failure{a}
	}
	return err
}

// Resume implements ordered.Owner.
func (c *call) Resume(err error) { c.resumed = append(c.resumed, err) }

// Conclude implements ordered.Owner.
func (c *call) Conclude(err error) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.err = err
	c.w.concluded = append(c.w.concluded, c)
	if c.w.held != nil {
		<-c.w.held
	}
}

// Repeat implements ordered.Owner.
func (c *call) Repeat(elsewhere bool) (again bool, err error) {
	ep, err := c.Await(context.Background(), "A.B", time.Time{}, 0)
	if err == nil {
		if ep == 0 {
			ep = 2
		}
		err = c.Attempt(context.Background(), c, "A.B", time.Time{}, ep, true)
	}
	return c.repeat, err
}

// Dropped implements ordered.Owner.
func (c *call) Dropped(err error) { c.dropped = append(c.dropped, err) }

// A request is an attempt of a call on a connection.
type request struct {
	of    *call
	epoch uint64
	to    mux.Completer
}

// A world is a client, whose calls have one key, and its connections to servers. A server executes
// the requests of a connection in their order. When it has refused one, it refuses the others of
// the same epoch.
type world struct {
	queues ordered.Queues[int, int]
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
	w.queues.Limit, w.queues.MaxResends, w.queues.Final = 1<<20, 3, seed%2 == 0
	w.queues.Guard = guard.New(slog.New(slog.DiscardHandler), errors.New)
	return w
}

// enter makes the next call. It waits for nothing, unless too many outcomes wait for callbacks.
func (w *world) enter(async bool) *call {
	w.mu.Lock()
	c := &call{w: w}
	w.mu.Unlock()
	_ = w.queues.Enter(context.Background(), &c.Turn, c, "key", async) // the context does not end
	return c
}

// begin makes the next asynchronous call on a goroutine.
func (w *world) begin(t *testing.T, number int) {
	c := w.enter(true)
	c.number, c.repeat = number, w.random.IntN(2) == 0
	w.ended.Go(func() {
		err := c.carryOut(t.Context())
		c.Finish(err, c.gaveUp)
	})
}

// carryOut sends a call until it has an outcome.
func (c *call) carryOut(ctx context.Context) error {
	for tries := 1; ; tries++ {
		ep, err := c.Await(ctx, "A.B", time.Time{}, 0)
		if err != nil {
			return err
		}
		if ep == 0 {
			ep = c.number%3 + 1
		}
		err = c.Attempt(ctx, c, "A.B", time.Time{}, ep, false)
		again := false
		switch {
		case err == nil:
		case isRefused(err):
			again = true
		case errors.Is(err, errLost):
			again = c.repeat && c.MayRepeat(false)
		default:
			again = c.repeat && !c.w.queues.Final && tries < 3
		}
		if c.gaveUp || !again {
			return err
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

// answer ends the first request of a connection.
func (w *world) answer(conn int, a *mux.Answer, err error) {
	r := w.conns[conn][0]
	w.conns[conn] = w.conns[conn][1:]
	r.to.Complete(a, err)
}

// reply executes or refuses the first request of a connection.
func (w *world) reply(conn int) {
	r := w.conns[conn][0]
	if w.refused[conn] == r.epoch || w.random.IntN(8) == 0 {
		w.refused[conn] = r.epoch
		w.answer(conn, refused, nil)
		return
	}
	w.executed = append(w.executed, r.of.number)
	w.answer(conn, []*mux.Answer{good, failed}[w.random.IntN(2)], nil)
}

// cut ends a connection. Some requests have been executed, some may have been, and the others have
// not.
func (w *world) cut(conn int) {
	n := len(w.conns[conn])
	w.over[conn] = true
	lost := w.random.IntN(n + 1)
	executed := w.random.IntN(lost + 1)
	for i := range n {
		if r := w.conns[conn][0]; i < executed && w.refused[conn] != r.epoch {
			w.executed = append(w.executed, r.of.number)
		}
		if i < lost {
			w.answer(conn, nil, errLost)
		} else {
			w.answer(conn, refused, nil)
		}
	}
}

// abandon makes the caller of a request give up.
func (w *world) abandon(conn int) {
	r := w.conns[conn][w.random.IntN(len(w.conns[conn]))]
	if of, ok := r.to.(mux.Follower); ok { // otherwise it has given up
		r.of.gaveUp = true
		r.to = of.Abandoned()
		of.Complete(nil, &mux.CallError{Cause: context.Canceled})
	}
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
	w.check(t, calls)
}

func (w *world) check(t *testing.T, calls int) {
	t.Attr("rerun", "never")
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
		if isSevered(c.err) {
			w.severed++
		}
		ran := slices.Contains(w.executed, c.number)
		switch {
		case c.err == nil && !c.gaveUp && !ran:
			t.Errorf("call %d has an outcome, and was not executed", c.number)
		case isSevered(c.err) && ran && !c.repeat:
			t.Errorf("call %d was executed, and failed because of an earlier one", c.number)
		}
	}
	if !slices.IsSorted(numbers) {
		t.Errorf("concluded out of order: %v", numbers)
	}
	w.checkEnd(t, calls)
}

// checkEnd checks that a number of calls were concluded, and that no memory of them remains.
func (w *world) checkEnd(t *testing.T, calls int) {
	t.Helper()
	if len(w.concluded) != calls || w.queues.Len() != 0 {
		t.Errorf("%d of %d calls were concluded, %d keys are left", len(w.concluded), calls, w.queues.Len())
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
	for name, test := range map[string]struct {
		wait func(ctx context.Context, c *call) error
		want error
		text string
	}{
		"context": {func(ctx context.Context, c *call) error {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Second, func() { cancel(errOver) })
			_, err := c.Await(ctx, "A.B", time.Time{}, 0)
			return err
		}, errOver, " after 1s of waiting for the calls before it"},
		"deadline": {func(ctx context.Context, c *call) error {
			_, err := c.Await(ctx, "A.B", time.Now().Add(time.Second), 0)
			return err
		}, mux.ErrDeadline, " after 1s of waiting for the calls before it"},
		"client": {func(ctx context.Context, c *call) error {
			closing := make(chan struct{})
			c.w.queues.Closing = closing
			time.AfterFunc(time.Second, func() { close(closing) })
			_, err := c.Await(ctx, "A.B", time.Time{}, 0)
			return err
		}, mux.ErrClosed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				first, second := w.enter(true), w.enter(true)
				err := test.wait(t.Context(), second)
				unsent, ok := errors.AsType[*mux.CallError](err)
				if !ok || !unsent.NotProcessed || !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) || second.Stood() != time.Second {
					t.Errorf("got %v after %v, want %v", err, second.Stood(), test.want)
				}
				first.Finish(nil, true)
				second.Finish(err, true)
				w.checkEnd(t, 2)
			})
		})
	}
}

// A call whose context has ended gives up its turn, and the calls behind it are sent.
func TestTheNextCallFollowsOneThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		first, second, third := w.enter(false), w.enter(false), w.enter(false)
		if _, err := first.Await(t.Context(), "A.B", time.Time{}, 0); err != nil {
			t.Fatal(err)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := second.Await(over, "A.B", time.Time{}, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		second.Leave(over, time.Time{}, true)
		w.ended.Go(func() {
			third.err = third.carryOut(t.Context())
			third.Leave(t.Context(), time.Time{}, false)
		})
		synctest.Wait()
		if len(w.busy()) != 0 {
			t.Error("the third call was sent before the first one")
		}
		w.ended.Go(func() {
			first.err = first.Attempt(t.Context(), first, "A.B", time.Time{}, 1, false)
			first.Leave(t.Context(), time.Time{}, false)
		})
		synctest.Wait()
		conns := w.busy()
		if len(conns) != 1 || len(w.conns[conns[0]]) != 2 || w.conns[conns[0]][0].of != first {
			t.Fatalf("on the connection are %v", w.conns)
		}
		w.answer(conns[0], good, nil)
		w.answer(conns[0], good, nil)
		w.ended.Wait()
		if first.err != nil || third.err != nil {
			t.Errorf("got %v, %v", first.err, third.err)
		}
		w.checkEnd(t, 0)
	})
}

// Asynchronous calls wait while as many outcomes as the limit allows wait for callbacks.
func TestOutcomesThatWaitAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.queues.Limit = 2
		held := make(chan struct{})
		w.held = held
		calls := []*call{w.enter(true), w.enter(true), w.enter(true)}
		w.ended.Go(func() { calls[0].Finish(nil, false) }) // its callback takes long
		synctest.Wait()
		calls[2].Finish(nil, false)
		calls[1].Finish(nil, false)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		given := &call{w: w}
		if err := w.queues.Enter(over, &given.Turn, given, "key", true); !errors.Is(err, context.Canceled) {
			t.Errorf("a call whose caller gave up got %v", err)
		}
		last := &call{w: w}
		w.ended.Go(func() {
			if err := w.queues.Enter(t.Context(), &last.Turn, last, "key", true); err != nil {
				t.Error(err)
			}
			last.Finish(nil, false)
		})
		synctest.Wait()
		close(held)
		w.ended.Wait()
		w.checkEnd(t, 4)
		if w.concluded[3] != last {
			t.Error("a call entered a queue that was full")
		}
	})
}

// sendAt sends a call, and returns when its request is on the connection that it returns.
func (w *world) sendAt(t *testing.T, c *call) (conn int) {
	t.Helper()
	w.ended.Go(func() { c.err = c.carryOut(t.Context()) })
	synctest.Wait()
	for conn, requests := range w.conns {
		if len(requests) > 0 && requests[len(requests)-1].of == c {
			return conn
		}
	}
	t.Fatal("the call was not sent")
	return 0
}

// A call that is made before the caller of a lost call is told is not sent: the lost call may still
// be executing. One that is made afterwards begins anew.
func TestCallsMadeBeforeALossIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		first, lost := w.enter(true), w.enter(true)
		conn := w.sendAt(t, first)
		if got := w.sendAt(t, lost); got != conn {
			t.Fatalf("the second call went over connection %d, the first over %d", got, conn)
		}
		w.conns[conn] = []*request{w.conns[conn][1], w.conns[conn][0]}
		w.answer(conn, nil, errLost)
		synctest.Wait()
		lost.Finish(lost.err, false)
		if entered, _ := w.queues.EnterAtOnce(new(ordered.Turn[int, int]), lost, "A.B", "key", 0, 1, 2); entered {
			t.Error("a call was sent at once before the loss was told")
		}
		w.answer(conn, good, nil)
		early := w.enter(true)
		_, err := early.Await(t.Context(), "A.B", time.Time{}, 0)
		if want := `A.B: an earlier call with the key "key" was interrupted; it may still be executing`; err == nil || err.Error() != want {
			t.Errorf("a call made before the loss was told: got %v", err)
		}
		early.Finish(err, false)
		synctest.Wait()
		first.Finish(first.err, false) // tells all three
		late := w.enter(true)
		w.answer(w.sendAt(t, late), good, nil)
		w.ended.Wait()
		late.Finish(late.err, false)
		if late.err != nil {
			t.Errorf("a call made after the loss was told: got %v", late.err)
		}
		w.checkEnd(t, 4)
	})
}

// A request that is being sent may be in the output already, before Send returns. An earlier call
// that has failed meanwhile does not follow it on the connection: the later call would be executed
// between the two executions of the earlier one.
func TestACallIsNotRepeatedBehindOneThatIsBeingSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		earlier, later := w.enter(true), w.enter(true)
		earlier.repeat = true
		conn := w.sendAt(t, earlier)
		sending := make(chan struct{})
		later.send = func() error { // and its request is in the output
			<-sending
			return nil
		}
		w.ended.Go(func() { later.err = later.carryOut(t.Context()) })
		synctest.Wait()
		w.answer(conn, failed, nil)
		synctest.Wait()
		if n := len(w.conns[conn]); n != 0 {
			t.Fatalf("%d requests are in flight: the earlier call was sent behind the later one", n)
		}
		close(sending)
		synctest.Wait()
		w.answer(conn, good, nil)
		w.ended.Wait()
		if err := earlier.err; err == nil || !strings.Contains(err.Error(), "a later call with the key") {
			t.Errorf("after the later call was executed, the earlier one gets %v", err)
		}
		earlier.Finish(earlier.err, false)
		later.Finish(later.err, false)
		w.checkEnd(t, 2)
	})
}
