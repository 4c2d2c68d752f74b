// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/session"
	"github.com/yodel-rpc/yodel/introspect"
)

func TestTheFirstCallAsksWhetherTheClientMayCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		for _, want := range []error{nil, failed} {
			l, asked := connect(t, nil), 0
			l.Reader("")
			l.Connect = func() error {
				if asked++; want != nil {
					l.Refuse()
				}
				return want
			}
			if l.Connected() || l.Refused() {
				t.Error("it is decided before the first call")
			}
			for range 3 {
				if err := l.Greet(); err != want {
					t.Errorf("got %v, want %v", err, want)
				}
			}
			if asked != 1 || l.Connected() != (want == nil) || l.Refused() != (want != nil) {
				t.Errorf("asked %d times; connected: %t, refused: %t", asked, l.Connected(), l.Refused())
			}
			time.Sleep(time.Second)
			select {
			case <-l.Draining():
				if want == nil {
					t.Error("the connection of a client that may call drains")
				}
			default:
				if want != nil {
					t.Error("the connection of a refused client does not drain")
				}
			}
		}
	})
}

func TestAConnWithoutConnectLetsItsClientCall(t *testing.T) {
	l := connect(t, nil)
	if err := l.Greet(); err != nil || l.Connected() {
		t.Errorf("got %v; connected: %t", err, l.Connected())
	}
}

// When the client has left, its calls end, and its one-way calls may go on for OrphanTime.
func TestOneWayCallsOutlastTheirClient(t *testing.T) {
	for took, want := range map[time.Duration]error{time.Second: nil, time.Hour: mux.ErrCallerGone} {
		synctest.Test(t, func(t *testing.T) {
			l := connect(t, nil)
			l.Go(func() {
				<-l.Context().Done()
				select {
				case <-time.After(took):
				case <-l.OneWay().Done():
				}
			})
			after(t, min(took, session.OrphanTime), l.Wait)
			if !l.gone() || context.Cause(l.OneWay()) != want {
				t.Errorf("after %v the one-way calls ended with %v, want %v", took, context.Cause(l.OneWay()), want)
			}
		})
	}
}

func TestAnAbortEndsAllCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		l.Go(func() { <-l.OneWay().Done() })
		l.Go(func() { panic("a protocol") })
		l.Abort()
		if _, err := l.client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection is still open: %v", err)
		}
		if kind, breach, err := l.Finish(errors.New("aborted")); kind != introspect.Closed || breach || err != nil {
			t.Error(kind, breach, err)
		}
		if l.rescued.Load() != 2 || context.Cause(l.Context()) != mux.ErrClosed {
			t.Errorf("%d goroutines have ended, the calls with %v", l.rescued.Load(), context.Cause(l.Context()))
		}
	})
}
