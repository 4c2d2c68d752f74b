// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A call that failed with NotProcessed was not executed: whoever believes it sends the call again.

// executions counts how often each request was executed.
type executions struct{ times sync.Map }

func (e *executions) serve(r *mux.Request) {
	n, _ := e.times.LoadOrStore(string(r.Body[:min(len(r.Body), 32)]), new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	answerEcho(r)
}

func (e *executions) of(body string) int64 {
	n, ok := e.times.Load(body[:min(len(body), 32)])
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// A trickle is a connection that takes writes in small portions, so that it is killed in the middle
// of them.
type trickle struct {
	net.Conn
	random *rand.Rand
}

func (c *trickle) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		k := 0
		k, err = c.Conn.Write(p[n : n+min(len(p)-n, 1+c.random.IntN(20_000))])
		n += k
	}
	return n, err
}

func TestNotProcessedMeansNotExecuted(t *testing.T) {
	t.Attr("rerun", "never")
	rounds := 300
	if raceEnabled {
		rounds = 100
	}
	var answered, notExecuted, unknown atomic.Int64
	t.Run("rounds", func(t *testing.T) {
		const beside = 6 // most of a round is waiting
		for i := range beside {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for round := i; round < rounds && !t.Failed(); round += beside {
					killInTheMiddle(t, round, &answered, &notExecuted, &unknown)
				}
			})
		}
	})
	t.Logf("%d calls answered, %d certainly not processed, %d unknown", answered.Load(), notExecuted.Load(), unknown.Load())
	if notExecuted.Load() == 0 || unknown.Load() == 0 {
		t.Error("the test does not kill connections in the middle")
	}
}

// killInTheMiddle makes calls on a connection that ends at a random moment, in one of the ways that
// there are.
func killInTheMiddle(t *testing.T, round int, answered, notExecuted, unknown *atomic.Int64) {
	t.Helper()
	t.Attr("rerun", "never")
	random := rand.New(rand.NewPCG(uint64(round), 7))
	var e executions
	limits := defaultLimits()
	limits.MaxOpen = 1 + random.IntN(200)
	s := &setup{
		client: mux.Config{Limits: limits},
		serves: map[string]*handler{"echo": {inline: true, serve: e.serve}, "other": {serve: e.serve}},
	}
	clientSide, serverSide := tcpPair(t)
	under := clientSide
	if round%4 == 0 {
		under = &trickle{clientSide, rand.New(rand.NewPCG(uint64(round), 9))}
	}
	c, srv := s.over(t, under, serverSide)
	type outcome struct {
		body string
		code uint16
		err  error
	}
	const callers = 30
	outcomes := make(chan outcome, 100_000)
	var wg sync.WaitGroup
	for i := range callers {
		seed := random.Uint64()
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, 8))
			for j := 0; ; j++ {
				body := fmt.Sprintf("%-32s", fmt.Sprint(i, " ", j))
				if random.IntN(10) == 0 {
					body += string(make([]byte, random.IntN(300_000)))
				}
				out := &mux.Out{Method: []*mux.Method{echo, other}[i%2], Body: []byte(body)}
				if random.IntN(3) == 0 {
					out.Deadline = time.Now().Add(time.Minute) // so that there are fields
				}
				send := callOut
				if random.IntN(2) == 0 {
					send = startAndWait
				}
				code, reply, err := send(context.Background(), c, out)
				if err == nil && code == 0 && reply != body {
					err = fmt.Errorf("got another reply, %.32q", reply)
				}
				outcomes <- outcome{body, code, err}
				if err != nil || code != 0 {
					return
				}
			}
		})
	}
	bytes := uint64(random.IntN(4 << 20))
	eventually(t, "bytes have been sent", func() bool { return c.Counters().BytesOut > bytes })
	switch round % 6 {
	case 0:
		serverSide.Close()
	case 1:
		_ = serverSide.(*net.TCPConn).SetLinger(0) // a reset
		serverSide.Close()
	case 2:
		clientSide.Close()
	case 3:
		go c.Close()
	case 4:
		srv.Drain()
		go srv.Abort()
	case 5:
		_, _ = clientSide.Write([]byte("garbage between two frames, or in one"))
	}
	wg.Wait()
	wantEnd(t, c)
	wantEnd(t, srv)
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
	close(outcomes)
	for o := range outcomes {
		times := e.of(o.body)
		var lost *mux.CallError
		switch {
		case times > 1:
			t.Errorf("round %d: %.32q was executed %d times", round, o.body, times)
		case o.err == nil && o.code == codeUnavailable: // refused in a drain
			notExecuted.Add(1)
			if times != 0 {
				t.Errorf("round %d: %.32q was refused and executed", round, o.body)
			}
		case o.err == nil:
			answered.Add(1)
			if times != 1 {
				t.Errorf("round %d: %.32q was answered without having been executed", round, o.body)
			}
		case !errors.As(o.err, &lost):
			t.Errorf("round %d: %.32q: got error %v", round, o.body, o.err)
		case lost.NotProcessed:
			notExecuted.Add(1)
			if times != 0 {
				t.Errorf("round %d, ended %v: %.32q, %d bytes, was executed and its error says that it was not: %v", round, c.Err(), o.body, len(o.body), o.err)
			}
		default:
			unknown.Add(1)
		}
	}
}

// What a breach ends may have been executed up to the breach.
func TestABreachDoesNotClaimThatNothingWasProcessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := make(chan struct{})
		s := &setup{serves: map[string]*handler{"echo": {serve: func(r *mux.Request) { close(began); <-r.Done() }}}}
		client, server := memoryPair(0)
		c, srv := s.over(t, client, server)
		ended := startCall(c, context.Background(), &mux.Out{Method: echo})
		<-began
		_, _ = client.Write(frameOf(wire.Header{Type: 100}, nil, nil))
		got := <-ended
		var refusal *mux.Refusal
		if !errors.As(got.err, &refusal) || refusal.Code != codeInternal || notProcessed(got.err) {
			t.Errorf("got %v, not processed: %t", got.err, notProcessed(got.err))
		}
		<-srv.Ended()
	})
}

// A connection below that is no socket may have sent more than it says.
func TestAFailedWriteMayHaveArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memoryPair(0)
		c := mux.New(client, nil, true, new(setup).config(t, mux.Config{}, nil))
		peer := newRawPeer(t, server)
		peer.write(hello(nil))
		synctest.Wait()
		client.out.refuse = errors.New("the connection broke while the last record was acknowledged")
		_, _, err := call(context.Background(), c, echo, "x")
		var failed *mux.IOError
		if !errors.As(err, &failed) || failed.Op != mux.Write || notProcessed(err) {
			t.Errorf("got %v, not processed: %t", err, notProcessed(err))
		}
		peer.expectHello()
		peer.expect(wire.Method)
		peer.expect(wire.Request) // it has arrived
	})
}

// What was not given to the connection below was certainly not executed, and neither was what has
// not come whole.
func TestWhatWasNotSentWasNotProcessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memoryPair(10_000)
		limits := defaultLimits()
		limits.KeepAlive, limits.Handshake = 0, 0
		c := mux.New(client, nil, true, new(setup).config(t, mux.Config{Limits: limits}, nil))
		defer server.Close()
		var calls []<-chan calling
		for i := range 4 {
			size := 5_000 // the first is written, the second in part, the others not at all
			if i == 3 {
				size = 1 << 20
			}
			calls = append(calls, startCall(c, context.Background(), &mux.Out{Method: echo, Body: make([]byte, size)}))
			synctest.Wait()
		}
		c.Abort()
		for i, end := range calls {
			got := <-end
			if want := i >= 2; notProcessed(got.err) != want {
				t.Errorf("call %d: not processed: %t, want %t (%v)", i, !want, want, got.err)
			}
		}
	})
}
