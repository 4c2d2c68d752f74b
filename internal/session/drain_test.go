// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/session"
	"github.com/yodel-rpc/yodel/introspect"
)

// quietTime is how long a drain waits for another call.
const quietTime = 200 * time.Millisecond

func TestADrainWaitsForCallsAndMessages(t *testing.T) {
	for what, test := range map[string]struct {
		most time.Duration // that the drain may take; 0 is without end
		busy func(l *link)
		want time.Duration
	}{
		"nothing is open":                  {0, func(*link) {}, quietTime},
		"nothing is open in a long drain":  {10 * time.Second, func(*link) {}, quietTime},
		"nothing is open in a short drain": {800 * time.Millisecond, func(*link) {}, 100 * time.Millisecond},
		"a call is open": {0, func(l *link) {
			l.Busy(1)
			time.AfterFunc(time.Minute, func() { l.Busy(-1) })
		}, time.Minute + quietTime},
		"a request has arrived, and its reader had no processor": {0, func(l *link) {
			l.unread.Store(true)
			time.AfterFunc(quietTime+time.Millisecond, func() { l.unread.Store(false) })
		}, 2 * quietTime},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := connect(t, nil)
			l.Reader("")
			test.busy(l)
			end := time.Time{}
			if test.most > 0 {
				end = time.Now().Add(test.most)
			}
			go l.Drain(end)
			after(t, test.want, func() {
				if err := l.Next(); err != io.EOF {
					t.Errorf("%s: got %v", what, err)
				}
			})
			<-l.Draining()
		})
	}
}

func TestADrainLetsAMessageArriveWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		r := l.Reader("")
		go l.send(t, "half")
		if err := l.Next(); err != nil {
			t.Fatal(err)
		}
		go l.Drain(time.Time{})
		go func() {
			time.Sleep(time.Second)
			l.send(t, "whole")
		}()
		if got, err := io.ReadAll(io.LimitReader(r, 9)); string(got) != "halfwhole" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		after(t, quietTime, func() {
			if err := l.Next(); err != io.EOF {
				t.Errorf("the message was not the last one: %v", err)
			}
		})
	})
}

// A client that always has a call open and another request on its way would keep a drain from
// ending. So its requests wait from time to time.
func TestADrainPausesTheRequestsOfABusyClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		r := l.Reader("")
		go l.Drain(time.Now().Add(10 * time.Second))
		go func() {
			for {
				if _, err := io.WriteString(l.client, "r"); err != nil {
					return
				}
			}
		}()
		var calls sync.WaitGroup
		executed := 0
		began := time.Now()
		for l.Next() == nil {
			if _, err := r.ReadByte(); err != nil {
				t.Error(err)
			}
			executed++
			l.Busy(1)
			calls.Add(1)
			time.AfterFunc(15*time.Millisecond, func() {
				l.Busy(-1)
				calls.Done()
			})
			time.Sleep(10 * time.Millisecond) // the next request arrives before the call ends
		}
		if took := time.Since(began); executed < 40 || took > 600*time.Millisecond {
			t.Errorf("%d requests in %v", executed, took)
		}
		l.end()
		calls.Wait()
	})
}

func TestANativeConnectionDoesNotDrainHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		drained := make(chan struct{})
		go func() {
			l.Drain(time.Time{})
			close(drained)
		}()
		go l.send(t, "native")
		l.Sniff(func([]byte) (foreign, more bool) { return false, false })
		after(t, 0, func() { <-drained })
	})
}

func TestAReadAheadNoticesThatTheClientDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		r := l.Reader("")
		stop := l.ReadAhead(false)
		l.send(t, "request")
		synctest.Wait()
		if l.gone() {
			t.Error("the client has only sent a request")
		}
		_ = l.client.Close()
		synctest.Wait()
		if !l.gone() {
			t.Error("the client has disconnected unnoticed")
		}
		stop()
		if got, err := io.ReadAll(r); string(got) != "request" || err != nil {
			t.Errorf("got %q, %v after the read-ahead", got, err)
		}
	})
}

func TestAReadAheadEndsWithoutALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		r := l.Reader("")
		for _, part := range []string{"a", "b", "c"} {
			stop := l.ReadAhead(false)
			l.send(t, part)
			synctest.Wait()
			after(t, 0, stop)
		}
		go l.send(t, "d")
		if got, err := io.ReadAll(io.LimitReader(r, 4)); string(got) != "abcd" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

// A client may send more than the buffer holds, so that its end cannot be read.
func TestAReadAheadWithAFullBufferAsksTheSystem(t *testing.T) {
	for what, test := range map[string]struct {
		patient, hangsUp bool
		want             time.Duration // until the client counts as gone; 0 if it does not
	}{
		"the client hangs up":                   {true, true, 10 * time.Second},
		"the client of a one-way call waits":    {false, false, session.OrphanTime},
		"the client of a call with reply waits": {true, false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var over atomic.Bool
			l := connect(t, func(o *session.Options) {
				o.Look = func(net.Conn) (unread, gone bool) { return true, over.Load() }
			})
			l.Reader("")
			stop := l.ReadAhead(test.patient)
			l.send(t, strings.Repeat("a", session.BufferSize))
			time.AfterFunc(10*time.Second, func() { over.Store(test.hangsUp) })
			for !l.gone() && time.Since(began) < time.Hour {
				time.Sleep(time.Second)
			}
			got := time.Since(began)
			if late := got - test.want; test.want > 0 && (late < 0 || late > 2*time.Second) || test.want == 0 && got < time.Hour {
				t.Errorf("%s: it counts as gone after %v, want %v", what, got, test.want)
			}
			stop()
		})
	}
}

func TestOtherCodeReadsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		go l.send(t, "GET /")
		l.Sniff(func(first []byte) (foreign, more bool) { return len(first) > 2, true })
		l.Reserve(session.BufferSize)
		l.Reader("")
		nc := l.AsConn(&net.UnixAddr{Name: "client", Net: "unix"})
		if nc.RemoteAddr().String() != "client" || l.held.Load() >= session.BufferSize/2 {
			t.Errorf("the address is %v, %d bytes are held", nc.RemoteAddr(), l.held.Load())
		}
		if got, err := io.ReadAll(io.LimitReader(nc, 5)); string(got) != "GET /" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		read := func() error {
			_, err := nc.Read(make([]byte, 1))
			return err
		}
		_ = nc.SetReadDeadline(time.Now().Add(time.Second))
		after(t, time.Second, func() {
			if err, ok := read().(net.Error); !ok || !err.Timeout() {
				t.Errorf("at its own deadline: %v", err)
			}
		})
		_ = nc.SetReadDeadline(time.Time{})
		after(t, time.Minute-time.Second, func() {
			if err := read(); err != io.EOF {
				t.Errorf("when the connection is idle: %v", err)
			}
		})
		l.Busy(1)
		go l.Drain(time.Time{})
		time.AfterFunc(time.Second, func() { l.Busy(-1) })
		after(t, time.Second+quietTime, func() {
			if err := read(); err != io.EOF {
				t.Errorf("when the server drains: %v", err)
			}
		})
		_ = nc.SetWriteDeadline(time.Now().Add(time.Second))
		after(t, time.Second, func() {
			if _, err := nc.Write([]byte("reply")); err == nil {
				t.Error("a write without a reader has succeeded")
			}
		})
	})
}

// A connection that other code has taken is that code's: a drain tells the code, and ends nothing.
func TestOtherCodeTakesTheConnection(t *testing.T) {
	type taker interface {
		First() []byte
		Take(drain func()) (nc net.Conn, first []byte, ok bool)
		Ended(here bool, err error)
	}
	for name, test := range map[string]struct{ before, long bool }{
		"drained later": {false, false}, "drained at once": {true, false}, "drained long before": {true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := connect(t, nil)
			go l.send(t, "PRI *")
			l.Sniff(func(first []byte) (foreign, more bool) { return len(first) > 2, true })
			l.Reader("")
			taken := l.AsConn(&net.UnixAddr{Name: "client", Net: "unix"}).(taker)
			if got := string(taken.First()); got != "PRI *" {
				t.Errorf("%s: the connection begins with %q", name, got)
			}
			if test.before {
				go l.Drain(time.Time{})
			}
			if test.long {
				time.Sleep(time.Second)
			}
			drained := make(chan bool, 2)
			nc, first, ok := taken.Take(func() { drained <- true })
			if ok == test.long {
				t.Fatalf("%s: taken: %t", name, ok)
			}
			if !ok {
				return
			}
			if nc != l.server || string(first) != "PRI *" {
				t.Errorf("%s: got %q", name, first)
			}
			if !test.before {
				time.Sleep(time.Hour) // IdleTimeout does not apply
				go l.Drain(time.Time{})
			}
			<-drained
			time.Sleep(time.Hour)
			go l.send(t, "x")
			if _, err := nc.Read(make([]byte, 1)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			failed := errors.New("failed")
			taken.Ended(false, failed)
			if kind, breach, err := l.Finish(failed); kind != introspect.ReadFailed || breach || err != failed {
				t.Error(kind, breach, err)
			}
			if _, breach, _ := l.Finish(errors.New("a breach of the protocol")); !breach {
				t.Error("an error of the protocol counts as one of the network")
			}
			if taken.Ended(true, nil); len(drained) > 0 {
				t.Errorf("%s: drained twice", name)
			}
			if kind, _, _ := l.Finish(nil); kind != introspect.Closed {
				t.Errorf("%s: the connection says %q", name, kind)
			}
		})
	}
}
