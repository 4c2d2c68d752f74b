// SPDX-License-Identifier: Apache-2.0

package torture_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/internal/await"
)

// bouncer is the value of serverEnv that makes the test binary the other half of
// TestTwoProcessesThatCallEachOther: a client of addrEnv that is called back.
const (
	bouncer = "bouncer"
	addrEnv = "YODEL_TORTURE_ADDR"
	openEnv = "YODEL_TORTURE_MAX_OPEN"
)

// A Bounce asks the other side to call back, and so on, so often.
type Bounce struct{ Left int }

// A Bounced says how often it was executed, on both sides.
type Bounced struct{ Times int }

// A Load is how much one side calls the other.
type Load struct{ Callers, Calls, Depth int }

// A Tally is what came of it.
type Tally struct {
	Executed int64 // by the methods of this side
	Received int64 // executions that the replies tell of
	Ended    bool  // this side has made its calls
	Failed   string
}

const (
	bounce yodel.Method[Bounce, Bounced] = "Torture.Bounce"
	begin  yodel.Method[Load, struct{}]  = "Torture.Begin" // of the bouncer: it makes its calls
	tally  yodel.Method[struct{}, Tally] = "Torture.Tally" // of the bouncer
)

// A side is one of two processes that call each other.
type side struct {
	executed atomic.Int64
	received atomic.Int64
	ended    atomic.Pointer[error]
}

func (s *side) bounce(ctx context.Context, in *Bounce) (*Bounced, error) {
	s.executed.Add(1)
	if in.Left == 0 {
		return &Bounced{1}, nil
	}
	peer, next := yodel.CallFrom(ctx).Peer(), &Bounce{in.Left - 1}
	var out *Bounced
	var err error
	if in.Left%2 == 0 { // a callback that calls back
		out, err = bounce.Go(ctx, peer, next).Get()
	} else {
		out, err = bounce.Call(ctx, peer, next)
	}
	if err != nil {
		return nil, err
	}
	return &Bounced{out.Times + 1}, nil
}

// load calls to as often as l says: half of it one by one, half of it by callbacks that make the
// next call.
func (s *side) load(ctx context.Context, to yodel.Caller, l *Load) error {
	failed := make(chan error, l.Callers)
	var wg sync.WaitGroup
	for i := range l.Callers {
		wg.Add(1)
		in := &Bounce{l.Depth}
		if i%2 == 0 {
			go func() {
				defer wg.Done()
				for range l.Calls {
					out, err := bounce.Call(ctx, to, in)
					if err != nil {
						failed <- err
						return
					}
					s.received.Add(int64(out.Times))
				}
			}()
			continue
		}
		left := l.Calls
		var next func(*Bounced, error)
		next = func(out *Bounced, err error) {
			if err != nil {
				failed <- err
				wg.Done()
				return
			}
			s.received.Add(int64(out.Times))
			if left--; left == 0 {
				wg.Done()
				return
			}
			bounce.Then(ctx, to, in, next)
		}
		go bounce.Then(ctx, to, in, next)
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case err := <-failed: // what the others wait for may never come
		return err
	case <-done:
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func (s *side) tally() *Tally {
	ended := s.ended.Load()
	out := &Tally{Executed: s.executed.Load(), Received: s.received.Load(), Ended: ended != nil}
	if ended != nil && *ended != nil {
		out.Failed = (*ended).Error()
	}
	return out
}

func limitsOf(maxOpen int) yodel.Limits { return yodel.Limits{MaxOpen: maxOpen} }

// bounceBack is the other process. It serves over the connection of its client until its standard
// input ends.
func bounceBack() {
	maxOpen, err := strconv.Atoi(os.Getenv(openEnv))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s, served := new(side), yodel.NewServer(&yodel.ServerOptions{Diagnostics: true})
	bounce.Handle(served, s.bounce)
	c := yodel.NewClient(discovery.Static(os.Getenv(addrEnv)), &yodel.ClientOptions{Server: served, Limits: limitsOf(maxOpen)})
	// one-way: it takes no place in the window
	begin.Handle(served, func(ctx context.Context, l *Load) (*struct{}, error) {
		err := s.load(context.WithoutCancel(ctx), c, l)
		s.ended.Store(&err)
		return nil, err
	})
	tally.Handle(served, func(context.Context, *struct{}) (*Tally, error) { return s.tally(), nil })
	if err := c.Ready(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
	c.Close()
}

// TestTwoProcessesThatCallEachOther has two processes call each other over one connection, both
// with more calls than the limits allow at once. Each call is called back, which calls back. All of
// them end, and each was executed once.
func TestTwoProcessesThatCallEachOther(t *testing.T) {
	for _, test := range []struct {
		maxOpen int
		load    Load
	}{
		{1, Load{Callers: 50, Calls: 40, Depth: 3}},
		{16, Load{Callers: 200, Calls: 20, Depth: 3}},
		{0, Load{Callers: 2000, Calls: 5, Depth: 2}},
	} {
		t.Run(fmt.Sprintf("MaxOpen %d", test.maxOpen), func(t *testing.T) {
			if raceEnabled {
				test.load.Calls = max(test.load.Calls/5, 1)
			}
			twoProcesses(t, test.maxOpen, &test.load)
		})
	}
}

func twoProcesses(t *testing.T, maxOpen int, l *Load) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	own := new(side)
	server := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Limits: limitsOf(maxOpen)})
	bounce.Handle(server, own.bounce)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	child := await.Command(t, os.Args[0])
	child.Env = append(os.Environ(), serverEnv+"="+bouncer, addrEnv+"="+listener.Addr().String(), openEnv+"="+strconv.Itoa(maxOpen))
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() && child.ProcessState == nil { // it prints its stacks and ends
			_ = child.Process.Signal(syscall.SIGQUIT)
			_ = child.Wait()
		}
	}()
	peer := onlyPeer(ctx, t, server)
	began := time.Now()
	if err := begin.Notify(ctx, peer, l); err != nil {
		t.Fatal(err)
	}
	if err := own.load(ctx, peer, l); err != nil {
		t.Errorf("this process: %v", err)
	}
	other := new(Tally)
	for !other.Ended {
		if other, err = tally.Call(ctx, peer, &struct{}{}); err != nil {
			t.Fatal(err)
		}
	}
	if other.Failed != "" {
		t.Errorf("the other process: %v", other.Failed)
	}
	each := int64(l.Callers * l.Calls * (l.Depth + 1))
	t.Logf("%d executions in %v", 2*each, time.Since(began))
	if n := own.executed.Load() + other.Executed; n != 2*each || own.received.Load() != each || other.Received != each {
		t.Errorf("%d executions, of which the replies told this process of %d and the other of %d; want %d, and %d each", n, own.received.Load(), other.Received, 2*each, each)
	}
	wantIdle(ctx, t, peer)
	_ = stdin.Close() // the child ends with it
	var exit error
	if err := await.Within(await.Patience, "the end of the other process", func() { exit = child.Wait() }, child.Process); err != nil {
		t.Fatal(err)
	}
	if exit != nil {
		t.Errorf("the other process: %v", exit)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("the server: %v", err)
	}
	if n := len(server.Peers()); n != 0 {
		t.Errorf("%d peers are left", n)
	}
}

// onlyPeer waits for the client of a server.
func onlyPeer(ctx context.Context, t *testing.T, server *yodel.Server) *yodel.Peer {
	t.Helper()
	for tick := time.NewTicker(time.Millisecond); ; {
		if peers := server.Peers(); len(peers) > 0 {
			tick.Stop()
			return peers[0]
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("nobody connected")
		}
	}
}

// wantIdle waits until no method of a peer runs any more: the numbers follow the replies.
func wantIdle(ctx context.Context, t *testing.T, peer *yodel.Peer) {
	t.Helper()
	for {
		stats, err := inspect.Stats.Call(ctx, peer, &inspect.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		running := int64(0)
		for _, m := range stats.Methods {
			running += m.Inflight
		}
		if running == 1 { // GetStats itself
			return
		}
	}
}
