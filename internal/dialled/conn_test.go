// SPDX-License-Identifier: Apache-2.0

package dialled_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// An owner notes what it is told.
type owner struct {
	mu   sync.Mutex
	told []string
}

func (o *owner) note(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, what)
}

func (o *owner) Connected()             { o.note("connected") }
func (o *owner) Unusable(*dialled.Conn) { o.note("unusable") }
func (o *owner) Ended(err error)        { o.note(fmt.Sprintf("ended: %v", err)) }

// is reports whether the owner was told this, once every goroutine waits.
func (o *owner) is(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.told, want) {
		t.Errorf("the owner was told %q, want %q", o.told, want)
	}
}

// config returns the settings of a client, whose connections refuse a server if refusal is not nil.
func config(t *testing.T, refusal *mux.Refusal) *mux.Config {
	t.Helper()
	of := func(conn *mux.Conn) *dialled.Conn { return conn.Owner().(*dialled.Conn) }
	c := &mux.Config{
		Limits: mux.Limits{MaxMessage: 1 << 20, MaxOpen: 10, MaxOpenBytes: 1 << 20, MaxMethods: 10, MaxUnsent: 1 << 20, Handshake: time.Minute},
		Pool:   mux.NewPool(), Watch: inline.NewWatch(),
		Hello: func(conn *mux.Conn, l *wire.Limits) *mux.Refusal {
			if refusal != nil {
				return refusal
			}
			of(conn).Answered(identity.Of(l, nil), string(l.Agent))
			return nil
		},
		Unusable: func(conn *mux.Conn) { of(conn).Owner.Unusable(of(conn)) },
		Ended:    func(conn *mux.Conn, err error) { of(conn).Over(err) },
	}
	t.Cleanup(c.Pool.Close)
	return c
}

// serve speaks yodel's own protocol as a server.
func serve(t *testing.T, nc net.Conn) *mux.Conn {
	t.Helper()
	c := config(t, nil)
	c.Agent, c.Unusable = "a server", nil
	c.Hello = func(*mux.Conn, *wire.Limits) *mux.Refusal { return nil }
	c.Ended = func(*mux.Conn, error) {}
	return mux.NewOf(nil, nc, nil, false, c)
}

func TestDialWaitsForTheSettingsOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		time.AfterFunc(time.Second, func() { serve(t, there) })
		o, began := new(owner), time.Now()
		c := &dialled.Conn{Owner: o}
		if err := c.Dial(t.Context(), here, config(t, nil)); err != nil || time.Since(began) != time.Second {
			t.Fatalf("got %v after %v", err, time.Since(began))
		}
		if c.Agent != "a server" || c.Heard == 0 || c.Server == nil || c.Secure || !c.Usable() {
			t.Errorf("the connection is %+v", c)
		}
		o.is(t)
		c.ReportConnected()
		c.ReportConnected()
		o.is(t, "connected")
		c.Close()
		<-c.Ended()
		o.is(t, "connected", "unusable", "ended: "+mux.ErrClosed.Error())
		if end := c.End(); c.Usable() || !errors.Is(end.Err, mux.ErrClosed) {
			t.Errorf("its end is %+v", end)
		}
	})
}

// The hook of a program learns of a connection before it learns of its end.
func TestAnOwnerLearnsOfAConnectionThatEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		server := serve(t, there)
		o := new(owner)
		c := &dialled.Conn{Owner: o}
		if err := c.Dial(t.Context(), here, config(t, nil)); err != nil {
			t.Fatal(err)
		}
		server.Abort()
		<-c.Ended()
		synctest.Wait()
		if len(o.told) != 3 || o.told[0] != "unusable" || o.told[1] != "connected" {
			t.Errorf("the owner was told %q", o.told)
		}
		c.ReportConnected()
		if len(o.told) != 3 {
			t.Error("the owner was told twice that it is connected")
		}
	})
}

func TestDialFails(t *testing.T) {
	refusal := &mux.Refusal{Message: "no"}
	for _, test := range []struct {
		name    string
		serves  bool
		refusal *mux.Refusal
		limit   time.Duration // 0 if the client is closed after a second
		want    error
		took    time.Duration
	}{
		{"a server is silent", false, nil, 2 * time.Second, mux.ErrHandshake, 2*time.Second + 50*time.Millisecond},
		{"the client is closed", false, nil, 0, mux.ErrHandshake, time.Second},
		{"the client refuses the server", true, refusal, 2 * time.Second, refusal, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer there.Close()
				if test.serves {
					serve(t, there)
				} else {
					go func() { // read what the client sends
						for b := make([]byte, 100); ; {
							if _, err := there.Read(b); err != nil {
								return
							}
						}
					}()
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.limit == 0 {
					time.AfterFunc(time.Second, cancel)
				} else {
					ctx, cancel = context.WithTimeout(ctx, test.limit)
					defer cancel()
				}
				o, began := new(owner), time.Now()
				c := &dialled.Conn{Owner: o}
				err := c.Dial(ctx, here, config(t, test.refusal))
				if took := time.Since(began); !errors.Is(err, test.want) || took != test.took {
					t.Errorf("got %v after %v, want %v after %v", err, took, test.want, test.took)
				}
				<-c.Ended()
				o.is(t, "unusable")
			})
		})
	}
}

func TestACallTakesTheConnectionWithTheFewestCalls(t *testing.T) {
	for _, test := range []struct {
		name  string
		open  []int64 // negative if the connection is full
		most  int
		fixed bool
		want  int // the index of the connection, or -1 for none
		full  bool
		more  bool
	}{
		{"no connection", nil, 2, false, -1, false, false},
		{"one", []int64{5}, 2, false, 0, false, false},
		{"the oldest of equal ones", []int64{3, 3}, 2, false, 0, false, false},
		{"the least loaded", []int64{3, 1, 2}, 3, false, 1, false, false},
		{"one that is not full", []int64{-1, 7, -2}, 3, false, 1, false, false},
		{"all are full", []int64{-3, -1}, 2, false, 1, true, false},
		{"there may be more", []int64{-3, -1}, 3, false, 1, true, true},
		{"there should be more", []int64{3, 1}, 3, true, 1, false, true},
		{"there are as many as there should be", []int64{3, 1}, 2, true, 1, false, false},
	} {
		var conns dialled.Conns
		for _, open := range test.open {
			conns = append(conns, loaded(t, open))
		}
		index := func(conn *dialled.Conn) int { return slices.Index(conns, conn) }
		least, full := conns.Least(false)
		next, more := conns.Next(nil, test.most, test.fixed)
		beside, wait := conns.Beside()
		if index(least) != test.want || full != test.full || index(next) != test.want || more != test.more || beside != least || wait != full {
			t.Errorf("%s: got %d and %d, full: %v, more: %v, wait: %v", test.name, index(least), index(next), full, more, wait)
		}
	}
}

func TestAHandlerCallsItsCallerOnTheConnectionOfTheCall(t *testing.T) {
	own := new(mux.Conn)
	conns := dialled.Conns{loaded(t, 0), {Mux: own}, loaded(t, 0)}
	if conn, more := conns.Next(own, 10, true); conn != conns[1] || more {
		t.Errorf("got %p of %p, more: %v", conn, conns, more)
	}
}

func TestRandomConnectionsShareTheLoad(t *testing.T) {
	conns := dialled.Conns{loaded(t, 2), loaded(t, 2), loaded(t, 3)}
	var got [3]int
	for range 200 {
		conn, _ := conns.Least(true)
		got[slices.Index(conns, conn)]++
	}
	if got[0] == 0 || got[1] == 0 || got[2] != 0 {
		t.Errorf("the connections were chosen %v times", got)
	}
}

func TestAConnectionOfAServerThatRemembersAKey(t *testing.T) {
	conns := dialled.Conns{}
	for _, name := range []string{"", "redis", "other"} {
		conns = append(conns, &dialled.Conn{Server: &identity.Server{Keys: keyscope.Scope{Name: name}}})
	}
	if conns.Remembering("other") != conns[2] || conns.Remembering("none") != nil {
		t.Error("the wrong connection was found")
	}
}
