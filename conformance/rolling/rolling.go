// SPDX-License-Identifier: Apache-2.0

// Package rolling restarts servers, one after the other, under clients of other frameworks that
// never pause. It then compares what the clients got with what the servers executed. Each server is
// a process of its own, which writes the ID of a call to a file before it executes the call.
//
// Tests of modules with such clients call Child in TestMain, and Run or Control. With -rolling.long
// a client gets 100,000 answers.
package rolling

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/await"
)

var long = flag.Bool("rolling.long", false, "each client gets 100,000 answers while servers restart")

const (
	servers = 3
	callers = 16
	// patience is how long a call may take. It is more than a shutdown may take.
	patience = 40 * time.Second
	// settling is how long the clients may take to use a server that has started.
	settling = 3 * time.Second
)

// Long reports whether the tests run in their long form.
func Long() bool { return *long }

// A Call makes the call with an ID, and returns its answer. Each caller has a Call of its own, and
// makes one call at a time.
type Call func(ctx context.Context, id int64) (answer string, err error)

// A Plan is what to restart under which clients.
type Plan struct {
	// Kind names one of the servers that Child got.
	Kind string
	// Dial returns the Call of the caller with a number, for servers at addrs.
	Dial func(t testing.TB, addrs []string, caller int) Call
	// Handover makes each server start its successor and pass its socket on, as package restart
	// does. Otherwise the server ends, and then a new one listens at the same address.
	Handover bool
	// Announced says that the server can tell the client that it drains, so that no call fails.
	Announced bool
	// Repeats says that the client repeats calls that failed, executed or not.
	Repeats bool
	// Lingers says that the client goes on choosing connections that have ended. Any number of its
	// calls may fail there, without being sent.
	Lingers bool

	cut bool // servers close their connections at once
}

// Books compare the calls of the clients with those that the servers have executed.
type Books struct {
	Answered int
	Refused  int // failed because a connection was refused
	Failed   int // failed otherwise, and were not executed
	Lost     int // failed, and were executed
	Twice    int // executed more than once
	Wrong    int // have another answer than theirs
	Restarts int
	Shutdown time.Duration // the longest
	took     []time.Duration
	errors   map[string]int
}

// Run restarts servers until the clients have enough answers. It reports an error if a call was
// executed and has no answer, was executed twice, or has the answer of another one.
func Run(t *testing.T, p Plan) {
	t.Helper()
	t.Attr("rerun", "never")
	b := p.run(t)
	if b.Lost > 0 {
		t.Errorf("%d calls were lost: they were executed, and their clients got errors", b.Lost)
	}
	if b.Twice > 0 {
		t.Errorf("%d calls were executed twice", b.Twice)
	}
	if b.Wrong > 0 {
		t.Errorf("%d calls have the answers of others, or were not executed", b.Wrong)
	}
	switch {
	case (p.Announced || p.Repeats) && b.Failed+b.Refused > 0:
		t.Errorf("%d calls failed, and a client that knows of the shutdown could send them elsewhere", b.Failed+b.Refused)
	case b.Failed > callers*b.Restarts && !p.Lingers:
		t.Errorf("%d calls failed in %d restarts, want at most one of each caller in each restart", b.Failed, b.Restarts)
	}
}

// Control is Run with servers that close their connections at once, instead of draining. It reports
// an error unless executed calls were lost. On a busy machine few calls run at the moment of a cut,
// so Control tries several times.
func Control(t *testing.T, p Plan) {
	t.Helper()
	p.cut = true
	for range 10 {
		if b := p.run(t); b.Lost > 0 || b.Twice > 0 && p.Repeats {
			return
		}
	}
	t.Error("servers that do not drain have lost nothing: the test does not see losses")
}

// Answer returns the answer to a call.
func Answer(id int64) string {
	return fmt.Sprint(id, strings.Repeat(" done", int(id%100)))
}

// takes returns how long a call takes: usually up to 3 ms, and seldom longer than a server that
// drains reads on.
func takes(id int64) time.Duration {
	switch {
	case id%4096 == 4095:
		return 1500 * time.Millisecond
	case id%256 == 255:
		return 200 * time.Millisecond
	}
	return time.Duration(id%4) * time.Millisecond
}

// An attempt is what one caller knows of one call.
type attempt struct {
	id    int64
	took  time.Duration
	right bool
	err   error
}

// A round is one run of a Plan.
type round struct {
	next     atomic.Int64 // the ID of the next call
	answered atomic.Int64
	stop     chan struct{}
	attempts [callers][]attempt
}

func (p Plan) run(t *testing.T) *Books {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("processes cannot be told to end by a signal")
	}
	answers, restarts := int64(2000), servers
	switch {
	case p.cut:
		answers, restarts = 200, 2*servers
	case *long:
		answers, restarts = 100_000, 8*servers
	}
	folder := t.TempDir()
	var members []*member
	var addrs []string
	for i := range servers {
		m := newMember(t, p, filepath.Join(folder, fmt.Sprint("journal", i)), addrs)
		members, addrs = append(members, m), append(addrs, m.addr)
	}
	r := &round{stop: make(chan struct{})}
	var all sync.WaitGroup
	for i := range callers {
		call := p.Dial(t, addrs, i)
		all.Go(func() { r.call(call, i, 100*answers) })
	}
	b := new(Books)
	end := time.Now().Add(4 * time.Minute)
	for ; b.Restarts < restarts || r.answered.Load() < answers; b.Restarts++ {
		if time.Now().After(end) {
			t.Errorf("after 4 minutes there are %d answers and %d restarts, want %d and %d", r.answered.Load(), b.Restarts, answers, restarts)
			break
		}
		m := members[b.Restarts%servers]
		if err := m.replace(); err != nil {
			t.Error(err)
			break
		}
		m.used(settling)
	}
	close(r.stop)
	err := await.Within(2*patience, "the ends of the callers", all.Wait)
	for _, m := range members {
		m.stop()
		b.Shutdown = max(b.Shutdown, m.drained)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.compare(r.attempts[:], executed(t, members, r.next.Load()))
	t.Log(t.Name(), b)
	return b
}

// call makes calls until the round ends.
func (r *round) call(call Call, caller int, most int64) {
	for id := r.next.Add(1) - 1; id < most; id = r.next.Add(1) - 1 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		began := time.Now()
		answer, err := call(ctx, id)
		cancel()
		r.attempts[caller] = append(r.attempts[caller], attempt{id, time.Since(began), answer == Answer(id), err})
		if err == nil {
			r.answered.Add(1)
		}
		select {
		case <-r.stop:
			return
		default:
		}
	}
}

// executed returns how often each call was executed, as the journals say.
func executed(t *testing.T, members []*member, calls int64) []int {
	t.Helper()
	times := make([]int, calls)
	for _, m := range members {
		journal, err := os.ReadFile(m.journal)
		if err != nil {
			t.Fatal(err)
		}
		for record := range slices.Chunk(journal, recordSize) {
			times[binary.LittleEndian.Uint64(record)]++
		}
	}
	return times
}

// variable is what differs between errors of the same kind.
var variable = regexp.MustCompile(`[0-9]+`)

func (b *Books) compare(attempts [][]attempt, executed []int) {
	b.errors = make(map[string]int)
	for _, a := range slices.Concat(attempts...) {
		if executed[a.id] > 1 {
			b.Twice++
		}
		if a.err == nil {
			b.Answered++
			b.took = append(b.took, a.took)
			if !a.right || executed[a.id] == 0 {
				b.Wrong++
			}
			continue
		}
		text := variable.ReplaceAllString(a.err.Error(), "#")
		switch {
		case executed[a.id] > 0:
			b.Lost++
			text += " (executed)"
		case strings.Contains(text, "connection refused"):
			b.Refused++
		default:
			b.Failed++
		}
		b.errors[text[:min(len(text), 200)]]++
	}
	slices.Sort(b.took)
}

// String returns the counts on one line, and the errors of the calls on lines of their own.
func (b *Books) String() string {
	at := func(percent int) time.Duration {
		if len(b.took) == 0 {
			return 0
		}
		return b.took[(len(b.took)-1)*percent/100].Round(10 * time.Microsecond)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d answers in %d restarts: %d executed and lost, %d executed twice, %d wrong; not executed: %d refused connections, %d others; "+
		"p50 %v, p99 %v, longest %v; longest shutdown %v", b.Answered, b.Restarts, b.Lost, b.Twice, b.Wrong, b.Refused, b.Failed,
		at(50), at(99), at(100), b.Shutdown.Round(time.Millisecond))
	for _, e := range slices.Sorted(maps.Keys(b.errors)) {
		fmt.Fprintf(&text, "\n\t%d x %s", b.errors[e], e)
	}
	return text.String()
}
