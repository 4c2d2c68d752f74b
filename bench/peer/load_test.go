// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Calls of the tests begin at whole milliseconds of a bubble's time, and measurements in between.
const offBeat = 500 * time.Microsecond

// A fake is a client whose calls do nothing on the network.
type fake struct {
	call          func() error
	closed, dials atomic.Int64
}

func (f *fake) Caller() (func() error, error) { return f.call, nil }
func (f *fake) Close() error                  { f.closed.Add(1); return nil }

// An asyncFake starts calls too.
type asyncFake struct {
	fake
	start func(done func(error))
}

func (f *asyncFake) Start(done func(error)) { f.start(done) }

func peerOf(c Client) *Peer {
	return &Peer{
		Name: "fake", Module: "std", Setup: "none", Works: []Work{Echo},
		Serve: func(addr string) (string, func(), error) { return addr + "1", func() {}, nil },
		Dial: func(context.Context, Options) (Client, error) {
			if f, ok := c.(*fake); ok {
				f.dials.Add(1)
			}
			return c, nil
		},
	}
}

// play runs a load to its end over its own protocol, and returns its last line.
func play(t *testing.T, p *Peer, line string) (map[string]any, error) {
	t.Helper()
	in, commands := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := load(p, in, out)
		out.Close()
		in.Close()
		ended <- err
	}()
	lines := json.NewDecoder(answers)
	_, _ = io.WriteString(commands, line+"\n")
	var answer map[string]any
	if lines.Decode(&answer) == nil {
		if answer["event"] != "ready" {
			t.Errorf("got %v, want ready", answer)
		}
		time.Sleep(offBeat)
		_, _ = io.WriteString(commands, `{"do":"go"}`+"\n")
		answer = nil
		_ = lines.Decode(&answer)
	}
	commands.Close()
	return answer, <-ended
}

func TestClosedLoopCountsTheCallsOfTheMeasurementOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{call: func() error { time.Sleep(time.Millisecond); return nil }}
		got, err := play(t, peerOf(f), `{"work":"echo","addrs":["a"],"mode":"closed","callers":10,"warmup_ms":100,"measure_ms":1000}`)
		if err != nil || got["calls"] != 10_000.0 || got["errors"] != 0.0 || got["seconds"] != 1.0 || f.closed.Load() != 1 {
			t.Errorf("got %v, %v, want 10,000 calls in a second", got, err)
		}
		for name, at := range got["latency_us"].(map[string]any) {
			if us := at.(float64); us < 999 || us > 1001 {
				t.Errorf("%s is %v, want 1000", name, us)
			}
		}
	})
}

func TestClosedLoopMeasuresCallsThatFitBadly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{call: func() error { time.Sleep(700 * time.Millisecond); return nil }}
		got, err := play(t, peerOf(f), `{"work":"echo","addrs":["a"],"mode":"closed","callers":1,"warmup_ms":100,"measure_ms":1000}`)
		// The first call belongs to the warm-up; the second begins at 700 ms.
		if err != nil || got["calls"] != 1.0 || got["seconds"] != 0.7 {
			t.Errorf("got %v, %v, want one call in 0.7 s", got, err)
		}
	})
}

func TestFreshLoopDialsForEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{call: func() error { time.Sleep(time.Millisecond); return nil }}
		got, err := play(t, peerOf(f), `{"work":"echo","addrs":["a"],"mode":"fresh","callers":2,"warmup_ms":100,"measure_ms":100}`)
		if err != nil || got["calls"] != 200.0 || f.dials.Load() != 402 || f.closed.Load() != 402 {
			t.Errorf("got %v, %v, %d dials and %d closes", got, err, f.dials.Load(), f.closed.Load())
		}
	})
}

// A wideFake echoes bodies of another size, too.
type wideFake struct {
	fake
	wide func(size int) error
}

func (f *wideFake) CallerOf(size int) (func() error, error) {
	return func() error { return f.wide(size) }, nil
}

func TestCallsBesideOthersAreNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &wideFake{fake: fake{call: func() error { time.Sleep(time.Millisecond); return nil }}}
		f.wide = func(size int) error {
			if size != 1000 {
				return errors.New("another size")
			}
			time.Sleep(10 * time.Millisecond)
			return nil
		}
		line := `{"work":"echo","addrs":["a"],"mode":"closed","callers":2,"beside":{"size":1000,"callers":3},"warmup_ms":100,"measure_ms":1000}`
		got, err := play(t, peerOf(f), line)
		if err != nil || got["calls"] != 2000.0 || got["beside"] != 300.0 || got["errors"] != 0.0 {
			t.Errorf("got %v, %v, want 2000 calls and 300 beside", got, err)
		}
		if longest := got["latency_us"].(map[string]any)["max"].(float64); longest > 1001 {
			t.Errorf("the longest latency is %v", longest)
		}
		if got, err := play(t, peerOf(&f.fake), line); got != nil || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a client that cannot do it gave %v, %v", got, err)
		}
	})
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		f := &fake{call: func() error {
			time.Sleep(time.Millisecond)
			if calls++; calls > 101 && calls%10 == 0 {
				return errors.New("it did not come back")
			}
			return nil
		}}
		line := `{"work":"echo","addrs":["a"],"mode":"closed","callers":1,"warmup_ms":100,"measure_ms":100}`
		got, err := play(t, peerOf(f), line)
		if err != nil || got["calls"] != 90.0 || got["errors"] != 10.0 || got["first_error"] != "it did not come back" {
			t.Errorf("got %v, %v", got, err)
		}
		if got, err := play(t, peerOf(f), line); got != nil || err == nil || !strings.Contains(err.Error(), "it did not come back") {
			t.Errorf("an error of the warm-up gave %v, %v", got, err)
		}
		time.Sleep(time.Second) // until the caller has noticed
	})
	for line, text := range map[string]string{
		`{"work":"kiss","addrs":["a"],"mode":"closed","callers":1,"measure_ms":1}`:                      `no work "kiss"`,
		`{"work":"echo","addrs":["a"],"mode":"clsoed","callers":1,"measure_ms":1}`:                      `no mode "clsoed"`,
		`{"work":"echo","addrs":["a"],"mode":"open","callers":1,"measure_ms":1}`:                        `needs a rate`,
		`{"work":"echo","addrs":["a"],"mode":"async","window":1,"measure_ms":1}`:                        `no asynchronous calls`,
		`{"work":"echo","addrs":["a"],"mode":"async","window":1,"beside":{"callers":1},"measure_ms":1}`: `not for the mode async`,
		`{"work":"echo","addrs":[],"mode":"async","window":1,"measure_ms":1}`:                           `addrs`,
		`{"work":"echo","addrs":["a"],"mode":"closed","callers":1,"measure_ms":"x"}`:                    `the order`,
	} {
		if got, err := play(t, peerOf(&fake{}), line); got != nil || err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s gave %v, %v", line, got, err)
		} else if declines := strings.Contains(text, "no work") || strings.Contains(text, "no async"); errors.Is(err, errors.ErrUnsupported) != declines {
			t.Errorf("%s: declines: %v, want %v", line, !declines, declines)
		}
	}
}

func TestOpenLoopCountsLatencyFromTheIntendedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		f := &fake{call: func() error {
			if calls++; calls == 300 { // one call holds up the hundred that are due meanwhile
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}}
		r := newRun(order{Work: Echo, Addrs: []string{"a"}, Mode: open, Callers: 1, Rate: 1000, WarmupMS: 100, MeasureMS: 1000}, time.Sleep)
		d := measureOffBeat(t, r, peerOf(f))
		if d.Calls != 1000 || d.Late != 0 || d.Seconds != 1 {
			t.Errorf("got %+v, want 1000 calls in a second, none late because of us", d)
		}
		// 100 + 99 + ... + 1 ms over 1000 calls.
		if d.Latency.Max < 99_900 || d.Latency.Max > 100_100 || d.Latency.Mean < 5_040 || d.Latency.Mean > 5_060 || d.Latency.P50 > 1 {
			t.Errorf("got %+v, want a mean of 5050 and a maximum of 100,000", d.Latency)
		}
	})
}

func TestOpenLoopThatIsTooFastTakesLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{call: func() error { time.Sleep(time.Millisecond); return nil }}
		r := newRun(order{Work: Echo, Addrs: []string{"a"}, Mode: open, Callers: 10, Rate: 20_000, MeasureMS: 1000}, time.Sleep)
		d := measureOffBeat(t, r, peerOf(f))
		if d.Calls != 20_000 || d.Seconds < 1.99 || d.Seconds > 2.01 || d.Late != 0 {
			t.Errorf("got %+v, want all 20,000 calls in two seconds", d)
		}
	})
}

func TestOpenLoopOwnsUpToItsOwnDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oversleep := func(time.Duration) { time.Sleep(5 * time.Millisecond) }
		r := newRun(order{Work: Echo, Addrs: []string{"a"}, Mode: open, Callers: 10, Rate: 1000, MeasureMS: 1000}, oversleep)
		d := measureOffBeat(t, r, peerOf(&fake{call: func() error { return nil }}))
		if d.Calls != 1000 || d.Late != 600 { // in time, 4, 3, 2 and 1 ms late
			t.Errorf("got %+v, want 600 late calls of 1000", d)
		}
	})
}

// measureOffBeat is measure in a bubble of fake time, where calls would else end just when the
// measurement begins.
func measureOffBeat(t *testing.T, r *run, p *Peer) *done {
	t.Helper()
	return measure(t, r, p, func() { time.Sleep(offBeat) })
}

// measure runs a load to its end. Before is called when it is warm.
func measure(t *testing.T, r *run, p *Peer, before func()) *done {
	t.Helper()
	if err := r.start(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := r.warmUp(); err != nil {
		t.Fatal(err)
	}
	before()
	d, err := r.measure()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAsyncNeverExceedsTheWindow(t *testing.T) {
	for _, window := range []int{1, 2, 63, 64, 1000} {
		synctest.Test(t, func(t *testing.T) {
			var open, most, begun, failed atomic.Int64
			epoch := time.Now()
			f := &asyncFake{start: func(done func(error)) {
				if n := open.Add(1); n > most.Load() {
					most.Store(n)
				}
				var err error
				if at := time.Since(epoch); at > 10*time.Millisecond && at < 111*time.Millisecond {
					if begun.Add(1)%10 == 0 {
						failed.Add(1)
						err = errors.New("lost")
					}
				}
				time.AfterFunc(time.Millisecond, func() { open.Add(-1); done(err) })
			}}
			r := newRun(order{Work: Echo, Addrs: []string{"a"}, Mode: async, Window: window, WarmupMS: 10, MeasureMS: 100}, time.Sleep)
			d := measureOffBeat(t, r, peerOf(f))
			if most.Load() != int64(window) {
				t.Errorf("window %d: %d calls were open at once", window, most.Load())
			}
			// Half of the window is the least that is open when the issuer is woken in the midst of
			// the ends of a moment.
			if got := d.Calls + d.Errors; got != begun.Load() || d.Errors != failed.Load() || got < int64(window)*100/2 {
				t.Errorf("window %d: got %+v, want %d calls and %d errors", window, d, begun.Load(), failed.Load())
			}
			if d.FirstError != "lost" || d.Seconds < 0.0999 || d.Seconds > 0.1001 || d.Latency.Min < 999 || d.Latency.Max > 1001 {
				t.Errorf("window %d: got %+v", window, d)
			}
		})
	}
}

// Replies come from several goroutines, at once and as fast as they can.
func TestAsyncWithRealGoroutines(t *testing.T) {
	calls := make(chan func(error), 1000)
	var ended atomic.Int64
	var servers sync.WaitGroup
	for range 3 {
		servers.Go(func() {
			for done := range calls {
				ended.Add(1)
				done(nil)
			}
		})
	}
	f := &asyncFake{start: func(done func(error)) { calls <- done }}
	r := newRun(order{Work: Echo, Addrs: []string{"a"}, Mode: async, Window: 50, WarmupMS: 5, MeasureMS: 50}, time.Sleep)
	d := measure(t, r, peerOf(f), func() {})
	close(calls)
	servers.Wait()
	if d.Calls == 0 || d.Calls > ended.Load() || d.Errors != 0 || d.Latency.Max == 0 {
		t.Errorf("got %+v, %d calls in all", d, ended.Load())
	}
}

func TestServeTellsItsAddressAndFigures(t *testing.T) {
	var out strings.Builder
	if err := serve(peerOf(&fake{}), strings.NewReader(`{"do":"figures"}`+"\n"), &out); err != nil {
		t.Fatal(err)
	}
	greeting, figures, _ := strings.Cut(out.String(), "\n")
	if !strings.HasPrefix(greeting, `{"addr":"127.0.0.1:01","name":"fake","version":"go1.`) || !strings.HasPrefix(figures, `{"mallocs":`) {
		t.Errorf("got %s", out.String())
	}
	if err := serve(peerOf(&fake{}), strings.NewReader(`{"do":"nothing"}`), io.Discard); err == nil {
		t.Error("it took a command that it does not know")
	}
}

func TestAlarmSleepsLongEnough(t *testing.T) {
	a, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer a.file.Close()
	begin := time.Now()
	for range 10 {
		a.sleep(200 * time.Microsecond)
	}
	if took := time.Since(begin); took < 2*time.Millisecond {
		t.Errorf("ten times 200 µs took %v", took)
	}
}

// The percentiles are compared with those of the sorted values themselves, of the rank that is
// next, and the mean and the bounds with theirs.
func TestPercentiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 10, 999, 1000, 1001, 123_456} {
		l, values, sum := newLatencies(), make([]float64, n), 0.0
		for i := range values {
			ns := int64(math.Exp(5 + 15*random.Float64())) // 150 ns to half a second
			l.shard(i).record(ns)
			values[i] = float64(ns) / 1000
			sum += values[i]
		}
		slices.Sort(values)
		at := func(percent float64) float64 { return values[max(int(math.Round(percent/100*float64(n))), 1)-1] }
		want := summary{values[0], sum / float64(n), at(50), at(90), at(99), at(99.9), values[n-1]}
		got, exact := reflect.ValueOf(l.summary()), reflect.ValueOf(want)
		for i := range got.NumField() {
			if g, w := got.Field(i).Float(), exact.Field(i).Float(); math.Abs(g-w) > 0.001*w+0.008 {
				t.Errorf("%d values: %s is %v, want %v", n, got.Type().Field(i).Name, g, w)
			}
		}
	}
}

// What the calls allocate that are open at the end is no part of it: so did at the begin those that
// do not count.
func TestAllocationsAreThoseOfTheMeasurement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sink []byte
		epoch := time.Now()
		f := &fake{call: func() error {
			time.Sleep(300 * time.Millisecond)
			if time.Since(epoch) > 1101*time.Millisecond { // after the measurement, which ends at 1100.5 ms
				sink = make([]byte, 64<<20)
			}
			return nil
		}}
		got, err := play(t, peerOf(f), `{"work":"echo","addrs":["a"],"mode":"closed","callers":1,"warmup_ms":100,"measure_ms":1000}`)
		if err != nil || got["calls"] != 3.0 || got["bytes"].(float64) > 32<<20 || sink == nil {
			t.Errorf("got %v, %v", got, err)
		}
	})
}
