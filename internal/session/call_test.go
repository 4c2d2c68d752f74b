// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/session"
	"github.com/yodel-rpc/yodel/introspect"
)

// cost is how many bytes an admitted call of 100 bytes counts.
const cost = 7<<10 + 100

// admit admits a call of 100 bytes. It waits for room if wait is set.
func admit(l *link, call *session.Call, is session.Terms, wait bool) *fault.Fault {
	return call.Admit(l.Context(), is, 100, wait, nil, new(int))
}

// begin begins and admits n calls.
func begin(t *testing.T, l *link, n int) []session.Call {
	t.Helper()
	calls := make([]session.Call, n)
	for i := range calls {
		l.Begin(&calls[i], "A.B")
		if f := admit(l, &calls[i], session.Terms{}, false); f != nil {
			t.Fatal(f)
		}
	}
	return calls
}

// end ends calls.
func end(calls []session.Call) {
	for i := range calls {
		if calls[i].Stop(true) {
			calls[i].End(new(int))
		}
	}
}

func TestACallTakesAndGivesBackMemory(t *testing.T) {
	l := connect(t, nil)
	var call session.Call
	l.Begin(&call, "A.B")
	l.Reserve(500)
	reserved := 300
	if f := call.Admit(t.Context(), session.Terms{}, 100, false, nil, &reserved); f != nil || reserved != 0 || l.held.Load() != 200+cost {
		t.Fatalf("got %v; %d reserved bytes are left, and %d are held", f, reserved, l.held.Load())
	}
	if how := call.Start(); how != "" || fmt.Sprint(l.Executing("peer")) != "[{A.B peer}]" {
		t.Errorf("%q; the open calls are %v", how, l.Executing("peer"))
	}
	call.Take(50)
	call.Give(20)
	if got := l.Describe(); got.Conn != (introspect.Conn{Open: 1}) || l.held.Load() != 200+cost+30 {
		t.Errorf("%+v, and %d bytes are held", got, l.held.Load())
	}
	reserved = 150 // set after the admission
	call.Stop(true)
	if call.End(&reserved); reserved != 0 || l.held.Load() != 50 || l.Describe().Open != 0 {
		t.Errorf("after the end %d bytes are held, and %d calls open", l.held.Load(), l.Describe().Open)
	}
	call.Free()
	if call.Running.Load() || call.Admitted() || call.Stop(true) {
		t.Error("a freed call has something of the one before, or can be ended again")
	}
	l.Begin(&call, "A.C")
	if !call.Stop(false) {
		t.Error("the next call has ended before it began")
	}
	call.End(new(int))
	end(begin(t, l, 2)) // all room is free again
}

func TestACallWithoutRoomIsRefused(t *testing.T) {
	passed := session.Terms{Deadline: time.Now().Add(-time.Second)}
	for _, test := range []struct {
		what   string
		open   int
		n      int
		is     session.Terms
		change func(o *session.Options)
		want   string
	}{
		{"a large request", 0, 1001, passed, nil, "YDL2201 A.B: the request has 1001 bytes, the server's limit is 1000"},
		{"a full connection", 2, 0, session.Terms{}, nil, "YDL3002 A.B: too many requests are open on this connection"},
		{"a full server", 1, 0, session.Terms{}, func(o *session.Options) { o.Room.Calls = 1 }, "YDL3002 A.B: too many requests are open on this server"},
		{"no room, too late", 2, 0, passed, nil, "YDL1005 A.B: the deadline passed before the server could begin"},
		{"no room, and another fault", 2, 0, session.Terms{Deadline: passed.Deadline, Refused: true}, nil, "YDL3002 A.B: too many requests are open on this connection"},
		{"no memory", 0, 0, session.Terms{}, func(o *session.Options) { o.MaxMemory = 7<<10 - 1 }, "YDL3007 A.B: the server has no memory left for what its peers make it hold"},
		{"room, too late", 1, 0, passed, nil, ""}, // Late says so before the method begins
	} {
		l := connect(t, test.change)
		calls, before := begin(t, l, test.open), l.held.Load()
		var call session.Call
		l.Begin(&call, "A.B")
		f, got := call.Admit(t.Context(), test.is, test.n, false, nil, new(int)), ""
		if f != nil {
			got = f.ID + " " + f.Error()
		}
		if got != test.want || f != nil && (!f.Unprocessed || call.Admitted() || l.held.Load() != before) {
			t.Errorf("%s: got %q, want %q; %d bytes are held", test.what, got, test.want, l.held.Load())
		}
		call.Stop(false)
		call.End(new(int))
		if end(calls); l.held.Load() != 0 {
			t.Errorf("%s: at the end %d bytes are held", test.what, l.held.Load())
		}
	}
}

// A call that waits for room gets it from one that ends, or waits until its deadline, or until its
// client disconnects.
func TestACallWaitsForRoom(t *testing.T) {
	for want, event := range map[string]func(l *link, calls []session.Call){
		"": func(_ *link, calls []session.Call) { end(calls[:1]) },
		"A.B: the deadline passed before the server could begin":    func(*link, []session.Call) { time.Sleep(time.Hour) },
		"A.B: the caller canceled it before the server could begin": func(l *link, _ []session.Call) { _ = l.client.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := connect(t, nil)
			l.Reader("")
			calls := begin(t, l, 2)
			var call session.Call
			l.Begin(&call, "A.B")
			go func() {
				time.Sleep(time.Second)
				event(l, calls)
			}()
			got := ""
			if f := admit(l, &call, session.Terms{Deadline: time.Now().Add(time.Minute)}, true); f != nil {
				got = f.Error()
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			call.Stop(false)
			call.End(new(int))
			time.Sleep(time.Hour)
			end(calls)
		})
	}
}

func TestACallIsLate(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	expired, stop := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer stop()
	past := time.Now().Add(-time.Second)
	for _, test := range []struct {
		what string
		ctx  context.Context
		is   session.Terms
		gone bool
		want string
	}{
		{"in time", t.Context(), session.Terms{Deadline: time.Now().Add(time.Hour)}, false, ""},
		{"the deadline has passed", t.Context(), session.Terms{Deadline: past}, false, "YDL1005"},
		{"the context has expired", expired, session.Terms{}, false, "YDL1005"},
		{"the caller has canceled it", ended, session.Terms{Deadline: past}, false, "YDL1006"},
		{"the client has left", t.Context(), session.Terms{}, true, "YDL1006"},
		{"the client of a one-way call has left", t.Context(), session.Terms{OneWay: true}, true, ""},
		{"the protocol has refused it", ended, session.Terms{Refused: true}, true, ""},
	} {
		l := connect(t, nil)
		if test.gone {
			l.Abort()
		}
		var call session.Call
		l.Begin(&call, "A.B")
		got := ""
		if f := call.Late(test.ctx, test.is); f != nil {
			got = f.ID
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
}

// Until the size of its replies is known, few calls of a method begin.
func TestTheFirstCallsOfAMethodWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, func(o *session.Options) {
			o.MaxOpen, o.MaxMemory, o.Room.Calls, o.Room.Bytes = 100, 1<<20, 100, 1<<20
		})
		var method admission.Replies
		calls := make([]session.Call, 18)
		for i := range 16 {
			l.Begin(&calls[i], "A.B")
			after(t, 0, func() { calls[i].Admit(t.Context(), session.Terms{}, 0, true, &method, new(int)) })
		}
		time.AfterFunc(10*time.Millisecond, func() { calls[0].Stop(false) }) // it has not run: the size is still unknown
		time.AfterFunc(30*time.Millisecond, func() { method.Learn(20_000) })
		for i, wait := range []time.Duration{10 * time.Millisecond, 20 * time.Millisecond} {
			call := &calls[16+i]
			l.Begin(call, "A.B")
			after(t, wait, func() { call.Admit(t.Context(), session.Terms{}, 0, true, &method, new(int)) })
		}
		if want := int64(17*7<<10 + 7<<10 + 20_000); l.held.Load() != want {
			t.Errorf("%d bytes are held, want %d: those of the reply that is expected, too", l.held.Load(), want)
		}
	})
}

func TestTheMisuseOfACallIsNamed(t *testing.T) {
	l := connect(t, nil)
	var call session.Call
	l.Begin(&call, "A.B")
	for _, step := range []struct{ want, got string }{
		{"admitted a request of negative size", call.Admittable(-1)},
		{"", call.Admittable(0)},
		{"ran the call without admitting it", call.Start()},
	} {
		if step.got != step.want {
			t.Errorf("got %q, want %q", step.got, step.want)
		}
	}
	if f := admit(l, &call, session.Terms{}, false); f != nil {
		t.Fatal(f)
	}
	for _, want := range []string{"", "ran the call twice"} {
		if got := call.Start(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := call.Admittable(0); got != "admitted the call twice" {
		t.Errorf("got %q", got)
	}
	if !call.Stop(true) || call.Stop(true) || call.Start() != "ran the call after it ended it" {
		t.Error("a call that has ended goes on")
	}
	var ended session.Call
	l.Begin(&ended, "A.B")
	if ended.Stop(false); ended.Admittable(0) != "ended the call before it admitted it" {
		t.Error("a call that has ended is admitted")
	}
}
