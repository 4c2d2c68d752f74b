// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// The tests of silence run in fake time.

func quietLimits(keepAlive, handshake time.Duration) mux.Limits {
	limits := defaultLimits()
	limits.KeepAlive, limits.Handshake = keepAlive, handshake
	return limits
}

// An idle connection stays, whoever of the two never calls.
func TestAnIdleConnectionStays(t *testing.T) {
	for _, limits := range []mux.Limits{quietLimits(10*time.Second, time.Second), quietLimits(0, time.Second), quietLimits(10*time.Second, 0)} {
		synctest.Test(t, func(t *testing.T) {
			s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
			c, srv := s.inMemory(t)
			time.Sleep(time.Hour)
			if c.Err() != nil || srv.Err() != nil {
				t.Fatalf("an idle connection ended: client %v, server %v", c.Err(), srv.Err())
			}
			mustEcho(t, c, echo, "after an hour")
			perPeriod := float64(c.Counters().FramesOut) / 360
			if limits.KeepAlive != 0 && (perPeriod < 0.3 || perPeriod > 2.1) {
				t.Errorf("%.2f frames were sent for each period of silence", perPeriod)
			}
		})
	}
}

func TestASilentPeerIsNotWaitedForInTheHandshake(t *testing.T) {
	for _, client := range []bool{true, false} {
		for _, said := range []string{"", wire.Preface[:3], wire.Preface, string(hello(nil)[:15])} {
			synctest.Test(t, func(t *testing.T) {
				own, peer := memoryPair(0)
				_, _ = peer.Write([]byte(said))
				start := time.Now()
				c := mux.New(own, nil, client, new(setup).config(t, mux.Config{Limits: quietLimits(0, 3*time.Second)}, nil))
				ended := startCall(c, context.Background(), &mux.Out{Method: echo})
				<-c.Ended()
				if took := time.Since(start); took != 3*time.Second || !errors.Is(c.Err(), mux.ErrHandshake) {
					t.Errorf("client %t, peer said %q: it ended after %v with %v", client, said, took, c.Err())
				}
				if got := <-ended; !errors.Is(got.err, mux.ErrHandshake) {
					t.Errorf("the call ended with %v", got.err)
				}
			})
		}
	}
}

// A peer that is gone without a word is found out, whether it still takes what is written or not.
func TestADeadPeerIsFoundOut(t *testing.T) {
	for _, buffer := range []int{0, 1000} {
		synctest.Test(t, func(t *testing.T) {
			client, server := memoryPair(buffer)
			_, _ = server.Write(hello(nil)) // its last words
			start := time.Now()
			c := mux.New(client, nil, true, new(setup).config(t, mux.Config{Limits: quietLimits(10*time.Second, time.Second)}, nil))
			defer server.Close()
			ended := startCall(c, context.Background(), &mux.Out{Method: echo, Body: make([]byte, 2000)})
			<-c.Ended()
			if took := time.Since(start); took < 20*time.Second || took > 30*time.Second || !errors.Is(c.Err(), mux.ErrDead) {
				t.Errorf("buffer %d: it ended after %v with %v", buffer, took, c.Err())
			}
			if got := <-ended; !errors.Is(got.err, mux.ErrDead) || notProcessed(got.err) {
				t.Errorf("the call ended with %v, not processed: %t", got.err, notProcessed(got.err))
			}
		})
	}
}

// A peer that reads slowly is not dead.
func TestASlowPeerIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memoryPair(10_000)
		limits := quietLimits(10*time.Second, 0)
		limits.MaxUnsent = 4 << 20
		c := mux.New(client, nil, true, new(setup).config(t, mux.Config{Limits: limits}, nil))
		defer c.Close()
		defer server.Close()
		ended := startCall(c, context.Background(), &mux.Out{Method: echo, Body: make([]byte, 10<<20)})
		b := make([]byte, 10_000)
		for range 1000 {
			time.Sleep(200 * time.Millisecond)
			if _, err := server.Read(b); err != nil {
				t.Fatalf("the slow peer was left: %v, %v", err, c.Err())
			}
		}
		select {
		case got := <-ended:
			t.Errorf("the call ended: %v", got.err)
		default:
		}
	})
}

// A side that does not read because it has too much to do does not take its peer for dead, and is
// not taken for dead.
func TestASideThatIsBusyIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := quietLimits(10*time.Second, time.Second)
		limits.MaxOpen = 2
		var executed atomic.Int64
		s := &setup{limits: limits, serves: map[string]*handler{"echo": {serve: func(*mux.Request) {
			time.Sleep(10 * time.Minute)
			executed.Add(1)
		}}}}
		c, srv := s.inMemory(t)
		for range 7 {
			if err := c.Notify(context.Background(), &mux.Out{Method: echo}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		if c.Err() != nil || srv.Err() != nil {
			t.Fatalf("client %v, server %v", c.Err(), srv.Err())
		}
		if n := executed.Load(); n != 7 {
			t.Errorf("%d one-way requests were executed", n)
		}
	})
}

func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, srv := new(setup).inMemory(t)
		for _, conn := range []*mux.Conn{c, srv} {
			if _, err := conn.Ping(context.Background()); err != nil {
				t.Error(err)
			}
		}
		c.Close()
		if _, err := c.Ping(context.Background()); !errors.Is(err, mux.ErrClosed) {
			t.Errorf("after Close: got error %v", err)
		}
		client, server := memoryPair(0)
		c = mux.New(client, nil, true, new(setup).config(t, mux.Config{Limits: quietLimits(0, 0)}, nil))
		defer c.Close()
		peer := newRawPeer(t, server)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := c.Ping(ctx); err != context.DeadlineExceeded {
			t.Errorf("without an answer: got error %v", err)
		}
		peer.write(hello(nil))
		peer.expectHello()
		peer.expect(wire.Ping)
		took := make(chan time.Duration)
		go func() {
			d, err := c.Ping(context.Background())
			if err != nil {
				t.Error(err)
			}
			took <- d
		}()
		_, frame := peer.expect(wire.Ping)
		time.Sleep(time.Second)
		n := binary.LittleEndian.Uint64(frame[wire.HeaderSize:])
		pong := func(n uint64) []byte {
			return frameOf(wire.Header{Type: wire.Pong}, nil, binary.LittleEndian.AppendUint64(nil, n))
		}
		peer.write(pong(n+1), frameOf(wire.Header{Type: wire.Pong}, nil, []byte("short")), pong(n), pong(n))
		if d := <-took; d != time.Second {
			t.Errorf("the answer took %v, want 1s", d)
		}
	})
}

// Whoever is told first: a client is not greeted by a server that has not heard the protocol's
// name.
func TestAServerDoesNotGreetStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memoryPair(0)
		srv := mux.New(server, nil, false, new(setup).config(t, mux.Config{}, nil))
		_, _ = client.Write([]byte(wire.Preface[:4]))
		synctest.Wait()
		if n := client.in.buffered(); n != 0 {
			t.Errorf("%d bytes were sent to somebody unknown", n)
		}
		_, _ = client.Write([]byte("HTTP"))
		<-srv.Ended()
		var preface *mux.PrefaceError
		if err := srv.Err(); !errors.As(err, &preface) || string(preface.Got) != wire.Preface[:4]+"HTTP" {
			t.Errorf("it ended with %v", err)
		}
		if n := client.in.buffered(); n != 0 {
			t.Errorf("%d bytes were sent to a stranger", n)
		}
	})
}
