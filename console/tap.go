// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is screen S6, calls as they end.

const (
	maxTaps   = 64               // pages that can watch calls
	tapsEach  = 4                // pages of one user that can
	tapLife   = 10 * time.Minute // then the page has to ask again
	tapped    = 20               // instances that one page can watch
	perSecond = 200              // calls in a second that a page gets at most
	heartbeat = 15 * time.Second
)

// taps counts the pages that watch calls, by user.
type taps struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

// add counts a page of a user that comes (1) or goes (-1). It returns why a page cannot come, or
// "".
func (t *taps) add(user string, n int) (why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case n > 0 && t.of[user] == tapsEach:
		return fmt.Sprintf("%d of your pages watch calls already", tapsEach)
	case n > 0 && t.all == maxTaps:
		return fmt.Sprintf("%d pages watch calls already", maxTaps)
	case t.of == nil:
		t.of = make(map[string]int)
	}
	t.all += n
	if t.of[user] += n; t.of[user] == 0 {
		delete(t.of, user)
	}
	return ""
}

// tap streams calls to a page, as server-sent events, until the page leaves.
func (c *Console) tap(w http.ResponseWriter, r *http.Request, user User) {
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		reply(w, r, nil, err)
		return
	}
	services, within := s.Services, "any service"
	if r.FormValue("service") != "" {
		one, err := s.find(r)
		if err != nil {
			reply(w, r, nil, err)
			return
		}
		services, within = []*fleet.Service{one}, one.Name
	}
	if why := c.taps.add(user.Name, 1); why != "" {
		refuse(w, r, http.StatusTooManyRequests, why)
		return
	}
	defer c.taps.add(user.Name, -1)
	addrs := tappable(services, r.FormValue("addr"))
	if len(addrs) == 0 {
		reply(w, r, nil, yodel.Errorf(yodel.NotFound, "no instance of %s shares live data: set ServerOptions.Diagnostics", within))
		return
	}
	slower, _ := strconv.Atoi(r.FormValue("slower")) // 0 is all
	q := introspect.TapQuery{
		Method: r.FormValue("method"), Peer: r.FormValue("peer"), Failed: r.FormValue("failed") == "true",
		Slower: time.Duration(slower) * time.Millisecond, PerSecond: max(perSecond/len(addrs), 1),
	}
	if !c.fleet.begin() {
		refuse(w, r, http.StatusServiceUnavailable, "the console is closed")
		return
	}
	defer c.fleet.begun.Done()
	ctx, cancel := context.WithTimeout(r.Context(), tapLife)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)() //nolint:contextcheck // the end of the console ends the tap too
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform") // a proxy that compresses would hold calls back
	h.Set("X-Accel-Buffering", "no")                 // nginx would hold calls back
	c.stream(ctx, w, services, addrs, &q)
}

// tappable returns the addresses of instances whose calls can be watched, in turn of each service.
// Addr is the only one that is wanted, or "".
func tappable(services []*fleet.Service, addr string) (addrs []string) {
	for i, more := 0, true; more && len(addrs) < tapped; i++ {
		more = false
		for _, service := range services {
			if i >= len(service.Instances) || len(addrs) == tapped {
				continue
			}
			more = true
			in := service.Instances[i]
			if in.Live != nil && (addr == "" || addr == in.Addr) && !slices.Contains(addrs, in.Addr) {
				addrs = append(addrs, in.Addr)
			}
		}
	}
	return addrs
}

// A tappedCall is a call, and the instance that executed it.
type tappedCall struct {
	*introspect.Tapped

	Instance string `json:"instance"`
}

// stream taps instances and writes what they send, until ctx ends or the page is gone.
func (c *Console) stream(ctx context.Context, w http.ResponseWriter, services []*fleet.Service, addrs []string, q *introspect.TapQuery) {
	of := make(map[string]bool)
	for _, service := range services {
		of[service.Name] = true
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	calls := make(chan tappedCall, perSecond)
	failed := make(chan string, len(addrs))
	var tapping sync.WaitGroup
	defer tapping.Wait()
	defer cancel()
	for _, addr := range addrs {
		tapping.Go(func() {
			if err := c.follow(ctx, addr, of, q, calls); err != nil && ctx.Err() == nil {
				failed <- addr + ": " + errorText(err)
			}
		})
	}
	control := http.NewResponseController(w)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	_, _ = fmt.Fprintf(w, "event: open\ndata: %d\n\n", len(addrs)) // the flush finds out whether the page is gone
	for {
		// A page that does not read is given up.
		_ = control.SetWriteDeadline(time.Now().Add(2 * heartbeat)) // some writers have none
		if err := control.Flush(); err != nil {
			return
		}
		var err error
		select {
		case call := <-calls:
			line, broken := encode(call)
			if broken != nil {
				continue
			}
			_, err = fmt.Fprintf(w, "data: %s\n\n", line)
		case why := <-failed:
			_, err = fmt.Fprintf(w, "event: failed\ndata: %s\n\n", strings.NewReplacer("\n", " ", "\r", " ").Replace(why))
		case <-beat.C:
			_, err = fmt.Fprint(w, ": still here\n\n")
		case <-ctx.Done():
			_, _ = fmt.Fprint(w, "event: end\ndata: \n\n") // the page may be gone
			return
		}
		if err != nil {
			return
		}
	}
}

// A limiter bounds what an instance makes the console pass on. The instance is only asked to send
// no more.
type limiter struct {
	perSecond int
	second    time.Time // when the running second began
	passed    int       // calls in it
	left      int       // calls that were left out since the last one that passed
}

// pass reports whether a call may be passed on. It cuts the call's texts, and counts in it the
// calls that were left out before.
func (l *limiter) pass(now time.Time, one *introspect.Tapped) bool {
	const most = 1 << 30 // an instance may say any number
	l.left = min(l.left+min(max(one.Left, 0), most), most)
	if now.Sub(l.second) >= time.Second {
		l.second, l.passed = now, 0
	}
	if l.passed++; l.passed > l.perSecond {
		if one.Method != "" {
			l.left = min(l.left+1, most)
		}
		return false
	}
	one.Left, l.left = l.left, 0
	for _, text := range []*string{&one.Method, &one.Peer, &one.Code, &one.Message, &one.Trace} {
		*text = field(*text)
	}
	return true
}

// follow passes the calls of an instance on that are of some services, until ctx or the feed ends.
func (c *Console) follow(ctx context.Context, addr string, of map[string]bool, q *introspect.TapQuery, calls chan<- tappedCall) error {
	client, err := c.fleet.client(ctx, addr)
	if err != nil {
		return err
	}
	limit := limiter{perSecond: q.PerSecond}
	for one, err := range inspect.Tap.Call(ctx, client, q) {
		if err != nil {
			return err
		}
		if one.Method != "" && !of[fleet.ServiceOf(one.Method)] || !limit.pass(time.Now(), one) {
			continue
		}
		select {
		case calls <- tappedCall{one, addr}:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}
