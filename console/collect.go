// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/rules"
)

// This file reads the fleet while users look at pages.

// A reader reads the fleet. It is a *fleet.Fleet, except in tests.
type reader interface {
	Read(ctx context.Context, services ...string) (*fleet.View, error)
	Client(addr string) *yodel.Client
	Close()
}

// A snapshot is the state of the fleet at one time. It is never changed.
type snapshot struct {
	*fleet.View

	took  time.Duration // to read it
	err   error         // why the registry cannot be read since then
	tried time.Time     // when the last read ended
	pause time.Duration // until the next read may begin
}

// collector keeps the last snapshot of each time range.
type collector struct {
	ctx  context.Context //nolint:containedctx // it ends the reads
	open func(span time.Duration) reader

	mu      sync.Mutex
	closed  bool // then nothing begins any more
	readers map[time.Duration]reader
	last    map[time.Duration]*snapshot
	busy    map[time.Duration]chan struct{} // closed when the snapshot is there
	begun   sync.WaitGroup                  // reads and taps; Add is called under mu
}

// open returns a reader of the fleet for a time range.
func (c *Console) open(span time.Duration) reader {
	o := &fleet.Options{Span: span, Client: c.opts.Client}
	if c.book != nil {
		o.Rules = func(ctx context.Context) ([]fleet.Ruling, error) {
			all, err := c.allRules(ctx)
			return rules.RulingsOf(all), err
		}
	}
	return fleet.New(c.source, o)
}

func (f *collector) init(ctx context.Context, open func(span time.Duration) reader) {
	f.ctx, f.open, f.readers = ctx, open, make(map[time.Duration]reader)
	f.last, f.busy = make(map[time.Duration]*snapshot), make(map[time.Duration]chan struct{})
}

// close waits for all reads and taps, and closes the readers. The context of the collector has
// ended.
func (f *collector) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.begun.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.readers {
		r.Close()
	}
	clear(f.readers)
}

// begin registers work that close waits for, unless the collector is closed. The caller calls
// f.begun.Done at the end of the work.
func (f *collector) begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.begun.Add(1)
	}
	return !f.closed
}

// reader returns the reader of a time range. The caller holds f.mu.
func (f *collector) reader(span time.Duration) reader {
	if f.readers[span] == nil {
		f.readers[span] = f.open(span)
	}
	return f.readers[span]
}

// client returns the client of an instance. It returns an error if the registry has no such
// instance, so that a user cannot make the console connect to any address.
func (f *collector) client(ctx context.Context, addr string) (*yodel.Client, error) {
	s, err := f.get(ctx, time.Minute)
	if err != nil {
		return nil, err
	}
	for _, service := range s.Services {
		for _, in := range service.Instances {
			if in.Addr != addr {
				continue
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if !f.closed {
				if client := f.reader(time.Minute).Client(addr); client != nil {
					return client, nil
				}
			}
			return nil, yodel.Errorf(yodel.Unavailable, "the console is closed")
		}
	}
	return nil, yodel.Errorf(yodel.NotFound, "the registry has no instance at %s", addr)
}

// unread is how long nobody has to look until the last snapshot is too old for the first who does.
const unread = 5 * time.Second

// get returns a snapshot that is about a second old, or older if it takes longer to read one. If
// there is none yet, get waits for it, and for a while also if the last one is old. After a read,
// also one that failed, get pauses for a second, or as long as the read took.
func (f *collector) get(ctx context.Context, span time.Duration) (*snapshot, error) {
	f.mu.Lock()
	last, busy := f.last[span], f.busy[span]
	if last != nil && time.Since(last.tried) < last.pause {
		f.mu.Unlock()
		return last.known()
	}
	if busy == nil && !f.closed {
		busy = make(chan struct{})
		f.busy[span] = busy
		from := f.reader(span)
		f.begun.Go(func() { f.read(from, span, last, busy) })
	}
	f.mu.Unlock()
	patience := 30 * time.Second
	if last != nil && last.View != nil {
		patience = time.Second / 4 // then the last one will do
		if time.Since(last.tried) > last.pause+unread {
			patience = 5 * time.Second // nobody has looked for a while
		}
	}
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case <-busy:
	case <-wait.C:
	case <-ctx.Done():
	case <-f.ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.last[span]; now != nil {
		return now.known()
	}
	return nil, yodel.Errorf(yodel.Unavailable, "the fleet has not answered yet")
}

// known returns the snapshot, or an error if the fleet has never been read.
func (s *snapshot) known() (*snapshot, error) {
	if s.View == nil {
		return nil, yodel.Errorf(yodel.Unavailable, "the registry cannot be read: %s", errorText(s.err))
	}
	return s, nil
}

// read makes a new snapshot. If the registry fails, the last one stays, with the reason.
func (f *collector) read(from reader, span time.Duration, last *snapshot, done chan struct{}) {
	began := time.Now()
	view, err := from.Read(f.ctx)
	now := time.Now()
	s := &snapshot{View: view, took: now.Sub(began), err: err, tried: now}
	if s.pause = max(time.Second, s.took); span > time.Minute {
		s.pause = max(5*time.Second, s.took)
	}
	if err == nil {
		complete(view)
		if view.Outage {
			s.err = errors.New(view.Err)
		}
	} else {
		s.View = nil
		if last != nil {
			s.View, s.took = last.View, last.took
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last[span] = s
	delete(f.busy, span)
	close(done)
}

// complete marks traffic as known where an instance shares live data and has had no calls.
func complete(v *fleet.View) {
	for _, service := range v.Services {
		known := false
		for _, in := range service.Instances {
			in.Traffic.Known = in.Traffic.Known || in.Live != nil
			known = known || in.Traffic.Known
		}
		service.Traffic.Known = known
		for i := range service.Methods {
			service.Methods[i].Traffic.Known = known
		}
	}
}
