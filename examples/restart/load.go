// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A load is callers, each of which makes a call as soon as its last one has ended, and streams.
type load struct {
	client  *yodel.Client
	began   time.Time
	stopped chan struct{} // closed when no more calls and items are made
	cancel  context.CancelFunc
	senders sync.WaitGroup // callers, and streams that send
	feeds   sync.WaitGroup
	streams []*stream
	events  chan string

	calls    atomic.Int64 // so far, and their numbers
	messages atomic.Int64 // of streams that are known to have arrived
	opened   atomic.Int64 // streams
	restarts atomic.Int64
	slowest  atomic.Int64 // call, in nanoseconds
	failed   atomic.Int64 // calls, and streams

	mu   sync.Mutex
	errs map[int]error // of calls that failed
}

// A stream is the items of a stream as their caller knows them. It belongs to one goroutine.
type stream struct {
	id   int
	kind string
	load *load
	made int   // how many items there are
	done int   // up to which one they have arrived, for sure
	err  error // why it ended early

	faults []error
}

const feed = "feed"

// The kinds of streams.
var kinds = []struct {
	name string
	run  func(context.Context, yodel.Caller, *stream) error
}{{feed, follow}, {"upload", store}, {"duplex", process}}

// startLoad starts callers and streams. They go on until they are stopped.
func startLoad(service []*instance, callers, streams int) *load {
	l := &load{began: time.Now(), stopped: make(chan struct{}), events: make(chan string), errs: make(map[int]error)}
	var addrs []string
	for _, in := range service {
		addrs = append(addrs, in.addr)
	}
	l.client = yodel.NewClient(discovery.Static(addrs...), nil)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for range callers {
		l.senders.Go(func() { l.caller(ctx) })
	}
	for id := range streams {
		kind := kinds[id%len(kinds)]
		s := &stream{id: id, kind: kind.name, load: l}
		l.streams = append(l.streams, s)
		group := &l.senders
		if kind.name == feed {
			group = &l.feeds
		}
		group.Go(func() {
			if s.err = kind.run(ctx, l.client, s); s.err != nil {
				l.failed.Add(1)
			}
		})
	}
	return l
}

// caller makes calls until the load is stopped.
func (l *load) caller(ctx context.Context) {
	for !l.isStopped() {
		id := int(l.calls.Add(1))
		began := time.Now()
		err := l.call(ctx, id)
		l.took(time.Since(began))
		if err != nil {
			l.fail(id, err)
		}
	}
}

func (l *load) call(ctx context.Context, id int) error {
	ctx, cancel := context.WithTimeout(ctx, patience) // so that a call that hangs is seen
	defer cancel()
	done, err := Work.Call(ctx, l.client, &Job{id})
	if err == nil && done.ID != id {
		err = fmt.Errorf("job %d got the answer of %d", id, done.ID)
	}
	return err
}

func (l *load) fail(id int, err error) {
	l.failed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs[id] = err
}

func (l *load) took(d time.Duration) {
	for slowest := l.slowest.Load(); int64(d) > slowest; slowest = l.slowest.Load() {
		if l.slowest.CompareAndSwap(slowest, int64(d)) {
			return
		}
	}
}

// await waits until there is an item with this number. It returns false when there will be none.
func (s *stream) await(seq int) bool {
	for seq > s.made {
		select {
		case <-time.After(rand.N(50 * time.Millisecond)):
			s.made += 1 + rand.N(8)
		case <-s.load.stopped:
			return false
		}
	}
	return true
}

// confirm notes that the items up to one have arrived.
func (s *stream) confirm(seq int) {
	if s.kind == feed && seq != s.done+1 {
		s.faults = append(s.faults, fmt.Errorf("item %d of stream %d came after item %d", seq, s.id, s.done))
	}
	s.load.messages.Add(int64(seq - s.done))
	s.done = seq
}

// opens notes that the stream is opened once more.
func (s *stream) opens() { s.load.opened.Add(1) }

func (s *stream) stopped() bool { return s.load.isStopped() }

func (l *load) isStopped() bool {
	select {
	case <-l.stopped:
		return true
	default:
		return false
	}
}

// stop lets the callers finish, and the streams that send. The feeds end with the servers.
func (l *load) stop() {
	close(l.stopped)
	late := time.AfterFunc(patience, l.cancel)
	defer late.Stop()
	l.senders.Wait()
}

// wait waits for the feeds.
func (l *load) wait() {
	late := time.AfterFunc(patience, l.cancel)
	defer late.Stop()
	l.feeds.Wait()
	l.client.Close()
	l.cancel()
}

// restarted shows that an instance was restarted.
func (l *load) restarted(what string) {
	l.restarts.Add(1)
	l.events <- what
}

// watch shows how it goes until f, which it runs, has returned.
func (l *load) watch(f func() error) error {
	pause, end := time.Second, "\n"
	if isTerminal(os.Stdout) {
		pause, end = 100*time.Millisecond, "\r"
	}
	ticks := time.NewTicker(pause)
	defer ticks.Stop()
	ended := make(chan error)
	go func() { ended <- f() }()
	for {
		select {
		case err := <-ended:
			fmt.Println(l.line() + "   the end")
			return err
		case what := <-l.events:
			fmt.Println(l.line() + "   " + what)
		case <-ticks.C:
			fmt.Print(l.line(), end)
		}
	}
}

// line says how it goes.
func (l *load) line() string {
	return fmt.Sprintf("%6.1fs  calls %7d  messages %7d  restarts %3d  slowest %4d ms  failed %d",
		time.Since(l.began).Seconds(), l.calls.Load(), l.messages.Load(), l.restarts.Load(), time.Duration(l.slowest.Load()).Milliseconds(), l.failed.Load())
}

// isTerminal reports whether a person is looking at f.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
