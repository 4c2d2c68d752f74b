// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How calls are made.
const (
	closed = "closed" // each caller calls again when its reply has come
	open   = "open"   // calls begin at a fixed rate, whatever became of those before
	async  = "async"  // one goroutine starts calls, and waits when too many are open
	fresh  = "fresh"  // closed, but each call dials, calls once and closes
)

// An order is the first line of a load's input.
type order struct {
	Work      Work     `json:"work"`
	Addrs     []string `json:"addrs"`
	Size      int      `json:"size"`
	Callers   int      `json:"callers"`
	Conns     int      `json:"conns"`
	Messages  int      `json:"messages"`
	Codec     string   `json:"codec"`
	Local     bool     `json:"local"`
	Idle      int      `json:"idle"` // actors in the process of the client
	Beside    beside   `json:"beside"`
	Mode      string   `json:"mode"`
	Rate      float64  `json:"rate"`   // open: calls a second
	Window    int      `json:"window"` // async: calls open at most
	WarmupMS  int      `json:"warmup_ms"`
	MeasureMS int      `json:"measure_ms"`

	DeadlineMS  int    `json:"deadline_ms"` // of each call; 0 is none
	Certificate string `json:"certificate"` // of the servers, in PEM; empty is without TLS
}

// A beside is what goes on beside the calls that are measured, on the same connections: callers
// that echo bodies of another size in a closed loop.
type beside struct {
	Size    int `json:"size"`
	Callers int `json:"callers"`
}

func (o *order) check(p *Peer) error {
	switch {
	case !slices.Contains(p.Works, o.Work):
		return fmt.Errorf("no work %q: %w", o.Work, errors.ErrUnsupported)
	case (o.Local || o.Idle > 0) && !p.Actors:
		return fmt.Errorf("no actors in the client: %w", errors.ErrUnsupported)
	case o.DeadlineMS > 0 && !p.Deadlines:
		return fmt.Errorf("no deadlines: %w", errors.ErrUnsupported)
	case o.Certificate != "" && p.ServeTLS == nil:
		return fmt.Errorf("no TLS: %w", errors.ErrUnsupported)
	case (o.Work == Send || o.Work == Duplex) && (o.Messages <= 0 || o.Mode != closed):
		return fmt.Errorf("the work %s needs messages and the mode closed", o.Work)
	case !slices.Contains([]string{closed, open, async, fresh}, o.Mode):
		return fmt.Errorf("there is no mode %q", o.Mode)
	case o.Work == Plain && !slices.Contains([]string{"gob", "json", "msgpack"}, o.Codec):
		return fmt.Errorf("there is no codec %q for the work plain", o.Codec)
	case len(o.Addrs) == 0 || o.MeasureMS <= 0:
		return errors.New("addrs and measure_ms are missing")
	case o.Beside.Callers > 0 && (o.Work != Echo || o.Mode == async || o.Mode == fresh):
		return fmt.Errorf("calls beside others are for the work echo, and not for the mode %s", o.Mode)
	case o.Mode == open && !(o.Rate > 0), o.Mode == async && o.Window <= 0, o.Mode != async && o.Callers <= 0:
		return fmt.Errorf("the mode %s needs a rate, a window or callers", o.Mode)
	}
	return nil
}

// Done is what a load has measured.
type done struct {
	Event      string  `json:"event"`
	Calls      int64   `json:"calls"`  // that began in the measurement and came back right
	Errors     int64   `json:"errors"` // those that did not
	FirstError string  `json:"first_error,omitempty"`
	Seconds    float64 `json:"seconds"`
	Latency    summary `json:"latency_us"`
	Beside     int64   `json:"beside"` // calls beside those, which have no part in the other figures
	counters
	Late int64 `json:"late"` // open: calls that began more than a millisecond late because of us
}

// A run is one load on its way. Its times are nanoseconds since epoch.
type run struct {
	order
	sleep       func(time.Duration)
	epoch       time.Time
	from, until atomic.Int64 // calls that begin in between count; none begin afterwards
	client      Client
	loops       sync.WaitGroup
	broken      chan error // a call failed that does not count

	latency     latencies
	calls       atomic.Int64
	errors      atomic.Int64
	first       atomic.Pointer[error]
	late        atomic.Int64
	accompanied atomic.Int64
	busy        atomic.Int64 // the time in which the calls were made, where it is not that of the measurement
}

func newRun(o order, sleep func(time.Duration)) *run {
	r := &run{order: o, sleep: sleep, epoch: time.Now(), broken: make(chan error, 1), latency: newLatencies()}
	r.from.Store(math.MaxInt64)
	r.until.Store(math.MaxInt64)
	return r
}

// now is cheaper than time.Now, which reads two clocks.
func (r *run) now() int64 { return int64(time.Since(r.epoch)) }

// start dials, and begins to call. The context ends with the program.
func (r *run) start(ctx context.Context, p *Peer) error {
	o := Options{Work: r.Work, Addrs: r.Addrs, Size: r.Size, Callers: r.Callers, Async: r.Mode == async, Conns: r.Conns, Messages: r.Messages, Codec: r.Codec,
		Local: r.Local, Idle: r.Idle, Deadline: time.Duration(r.DeadlineMS) * time.Millisecond}
	if r.Certificate != "" {
		var err error
		if o.TLS, err = trusting(r.Certificate); err != nil {
			return err
		}
	}
	callers := make([]func() error, r.Callers)
	if r.Mode == fresh {
		o.Callers = 1
		for i := range callers {
			callers[i] = func() error { return callOnce(ctx, p, o) }
		}
		r.spawn(callers)
		return nil
	}
	client, err := p.Dial(ctx, o)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	r.client = client
	if r.Idle > 0 { // what has only been needed to make them has no part in their memory
		debug.FreeOSMemory()
	}
	if r.Mode == async {
		starter, ok := client.(Starter)
		if !ok {
			return fmt.Errorf("no asynchronous calls: %w", errors.ErrUnsupported)
		}
		r.loops.Go(func() { r.issue(starter.Start) })
		return nil
	}
	for i := range callers {
		if callers[i], err = client.Caller(); err != nil {
			return fmt.Errorf("caller %d: %w", i+1, err)
		}
	}
	if err := r.spawnBeside(client); err != nil {
		return err
	}
	r.spawn(callers)
	return nil
}

// spawnBeside begins what goes on beside the calls that are measured.
func (r *run) spawnBeside(client Client) error {
	if r.Beside.Callers == 0 {
		return nil
	}
	resizer, ok := client.(Resizer)
	if !ok {
		return fmt.Errorf("no echo of two sizes over the same connections here: %w", errors.ErrUnsupported)
	}
	for i := range r.Beside.Callers {
		call, err := resizer.CallerOf(r.Beside.Size)
		if err != nil {
			return fmt.Errorf("caller %d beside: %w", i+1, err)
		}
		r.loops.Go(func() { r.accompany(call) })
	}
	return nil
}

// accompany is a closed loop of which nothing counts but how many calls it made, and that they were
// right.
func (r *run) accompany(call func() error) {
	for begin := r.now(); begin < r.until.Load(); begin = r.now() {
		switch err := call(); {
		case !r.counts(begin):
			r.unless(err)
		case err != nil:
			r.fail(err)
		default:
			r.accompanied.Add(1)
		}
	}
}

func callOnce(ctx context.Context, p *Peer, o Options) error {
	client, err := p.Dial(ctx, o)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	call, err := client.Caller()
	if err == nil {
		err = call()
	}
	return errors.Join(err, client.Close())
}

func (r *run) spawn(callers []func() error) {
	if r.Mode != open {
		for i, call := range callers {
			r.loops.Go(func() { r.repeat(call, r.latency.shard(i)) })
		}
		return
	}
	due := make(chan int64, 1<<16)
	for i, call := range callers {
		r.loops.Go(func() { r.take(due, call, r.latency.shard(i)) })
	}
	r.loops.Go(func() { r.schedule(due) })
}

// repeat is a closed loop.
func (r *run) repeat(call func() error, s *shard) {
	var calls, first, last int64
	for {
		begin := r.now()
		if begin >= r.until.Load() {
			break
		}
		err := call()
		end := r.now()
		if !r.counts(begin) {
			r.unless(err)
			continue
		}
		if first == 0 {
			first = begin
		}
		last = end
		if err != nil {
			r.fail(err)
			continue
		}
		calls++
		s.record(end - begin)
	}
	r.calls.Add(calls)
	if r.Callers == 1 {
		r.busy.Store(last - first)
	}
}

// schedule puts the moment at which each call is to begin into due, when it has come.
func (r *run) schedule(due chan<- int64) {
	defer close(due)
	first := r.now()
	heldUp := first // until then by callers that were all busy
	for i := 0; ; i++ {
		at := first + int64(float64(i)/r.Rate*1e9)
		if at >= r.until.Load() {
			return
		}
		now := r.now()
		for ; now < at; now = r.now() {
			r.sleep(max(time.Duration(at-now), shortest))
		}
		if now-at > int64(time.Millisecond) && at > heldUp && r.counts(at) {
			r.late.Add(1)
		}
		select {
		case due <- at:
		default:
			due <- at
			heldUp = r.now()
		}
	}
}

// shortest is how long a schedule sleeps at least, so that fast ones do not take a processor for
// themselves.
const shortest = 50 * time.Microsecond

// take makes calls that are due. Their latency is counted from the moment at which they were to
// begin.
func (r *run) take(due <-chan int64, call func() error, s *shard) {
	var calls, last int64
	for at := range due {
		err := call()
		if !r.counts(at) {
			r.unless(err)
			continue
		}
		last = r.now()
		if err != nil {
			r.fail(err)
			continue
		}
		calls++
		s.record(last - at)
	}
	r.calls.Add(calls)
	for span := last - r.from.Load(); ; { // the longest of all callers
		if old := r.busy.Load(); span <= old || r.busy.CompareAndSwap(old, span) {
			return
		}
	}
}

// counts reports whether a call belongs to the measurement that began or was to begin at a moment.
func (r *run) counts(at int64) bool { return at >= r.from.Load() && at < r.until.Load() }

// unless ends the run when err is not nil, the outcome of a call that does not count.
func (r *run) unless(err error) {
	if err == nil {
		return
	}
	select {
	case r.broken <- fmt.Errorf("a call before the measurement: %w", err):
	default:
	}
}

func (r *run) fail(err error) {
	r.errors.Add(1)
	r.first.CompareAndSwap(nil, &err)
}

// warmUp waits until the measurement may begin. The calls go on.
func (r *run) warmUp() error {
	select {
	case err := <-r.broken:
		return err
	case <-time.After(time.Duration(r.WarmupMS) * time.Millisecond):
		return nil
	}
}

// awaitGo waits for the word to begin, and reports whether it came. When the input ends, nobody is
// interested any more.
func (r *run) awaitGo(lines *json.Decoder) (proceed bool, err error) {
	word := make(chan error, 1)
	var c command
	go func() { word <- lines.Decode(&c) }()
	select {
	case err = <-r.broken:
	case err = <-word:
	}
	switch {
	case errors.Is(err, io.EOF):
		return false, nil
	case err != nil:
		return false, err
	case c.Do != "go":
		return false, fmt.Errorf("a load that is ready knows nothing of %q", c.Do)
	}
	return true, nil
}

// measure lets the calls that begin from now on count, and waits until the last one has come back.
func (r *run) measure() (*done, error) {
	before := readCounters()
	length := time.Duration(r.MeasureMS) * time.Millisecond
	from := r.now()
	r.until.Store(from + int64(length))
	r.from.Store(from)
	over := make(chan struct{})
	go func() {
		r.loops.Wait()
		close(over)
	}()
	select {
	case err := <-r.broken:
		return nil, err
	case <-time.After(length):
	}
	used := readCounters() // what the calls use that are open now was used at the begin by those that do not count
	select {
	case err := <-r.broken:
		return nil, err
	case <-over:
	case <-time.After(drainTimeout):
		return nil, fmt.Errorf("calls are open %v after the measurement", drainTimeout)
	}
	if r.Mode == open { // it makes all its calls, however late
		used = readCounters()
	}
	select { // a call of before may have failed at the end
	case err := <-r.broken:
		return nil, err
	default:
	}
	d := &done{
		Event: "done", Calls: r.calls.Load(), Errors: r.errors.Load(), Late: r.late.Load(), Beside: r.accompanied.Load(),
		counters: used.since(before), Seconds: r.took(length).Seconds(), Latency: r.latency.summary(),
	}
	if err := r.first.Load(); err != nil {
		d.FirstError = (*err).Error()
	}
	return d, nil
}

const drainTimeout = 30 * time.Second

// took returns the time in which the calls were made. It is that of the measurement with some
// exceptions: a single caller makes them between the begin of its first one and the end of its last
// one, so that long calls, of which few fit into a measurement, are counted right too; an open loop
// that cannot keep up takes longer than it was meant to; an asynchronous one reads the clock now
// and then only. Several callers end one after the other, with less and less load, which therefore
// has no part in it.
func (r *run) took(length time.Duration) time.Duration {
	busy := time.Duration(r.busy.Load())
	switch {
	case r.Mode == open:
		return max(length, busy)
	case r.Mode == async, r.Callers == 1 && busy > 0:
		return busy
	}
	return length
}

// close ends the calling and the connections.
func (r *run) close() {
	r.until.Store(0)
	if r.client != nil {
		r.client.Close() //nolint:errcheck // what is measured is measured
	}
}
