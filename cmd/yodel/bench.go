// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// benchOptions are the flags of bench.
type benchOptions struct {
	callOptions

	callers  int
	conns    int
	length   time.Duration
	warmUp   time.Duration
	rate     float64
	save     string
	noSave   bool
	baseline string
	failIf   string
}

func (a *app) benchCommand() *cobra.Command {
	var o benchOptions
	c := command(writes, &cobra.Command{
		Use:   "bench SERVICE/METHOD [JSON | @FILE | -]",
		Short: "Measure how fast a unary method answers",
		Long: "By default the loop is closed: each of -c callers makes its next call when the one before it has ended. With\n" +
			"--rate the loop is open: calls are due at fixed times, and a latency counts from the time at which the call was\n" +
			"due. So calls that wait for a slow server count with their whole wait. Calls have no deadline without --deadline:\n" +
			"those without a reply fail when --timeout has passed since the end of the measurement.\n" +
			"The result is saved as JSON, for --baseline. The exit code is 3 if a condition of --fail-if holds.",
		Example: "  yodel bench shop.Cart/Get -c 50 -d 10s\n  yodel bench shop.Cart/Get --rate 5000\n" +
			"  yodel bench shop.Cart/Get --baseline .yodel/bench/a.json --fail-if 'p99>+10%,ok<99.9%'",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeMethod,
		RunE: func(c *cobra.Command, args []string) error {
			body := ""
			if len(args) == 2 {
				body = args[1]
			}
			return a.bench(c.Context(), args[0], body, &o)
		},
	})
	f := c.Flags()
	f.IntVarP(&o.callers, "callers", "c", 10, "`N` calls in flight at most")
	f.IntVar(&o.conns, "conns", 1, "`N` connections to each instance at most")
	f.DurationVarP(&o.length, "duration", "d", 10*time.Second, "how long to measure")
	f.DurationVar(&o.warmUp, "warm-up", 2*time.Second, "how long to call before the measurement")
	f.Float64Var(&o.rate, "rate", 0, "calls a second in an open loop; 0 is a closed loop")
	f.DurationVar(&o.deadline, "deadline", 0, "how long each call may take; 0 is no deadline")
	f.StringVar(&o.wire, "wire", "", "`PROTOCOL` of the calls, as for call")
	f.StringVar(&o.save, "save", "", "`FILE` for the result (default .yodel/bench/TIME.json)")
	f.BoolVar(&o.noSave, "no-save", false, "do not save the result")
	f.StringVar(&o.baseline, "baseline", "", "compare with the result in this `FILE`")
	f.StringVar(&o.failIf, "fail-if", "", "`CONDITIONS` such as p99>10ms, p99>+10%, rate<-5%, ok<99.9%, separated by commas")
	return c
}

// A benchResult is what bench saves. Latencies are in nanoseconds.
type benchResult struct {
	Method    string            `json:"method"`
	At        time.Time         `json:"at"`
	Loop      string            `json:"loop"` // closed or open
	Callers   int               `json:"callers"`
	Target    float64           `json:"target,omitempty"` // calls a second of an open loop
	Wire      string            `json:"wire,omitempty"`
	Seconds   float64           `json:"seconds"`
	Calls     uint64            `json:"calls"`
	Rate      float64           `json:"rate"` // calls a second that ended
	OK        float64           `json:"ok"`   // share of the calls that succeeded
	Codes     map[string]uint64 `json:"codes"`
	Latency   latency           `json:"latency"`
	Histogram []bar             `json:"histogram"`
	Instances []benchInstance   `json:"instances"`
	BytesOut  uint64            `json:"bytesOut,omitempty"`
	BytesIn   uint64            `json:"bytesIn,omitempty"`
	Payload   int               `json:"payload"` // bytes of the request in JSON
}

type latency struct {
	Min   time.Duration `json:"min"`
	Mean  time.Duration `json:"mean"`
	P50   time.Duration `json:"p50"`
	P90   time.Duration `json:"p90"`
	P99   time.Duration `json:"p99"`
	P999  time.Duration `json:"p999"`
	P9999 time.Duration `json:"p9999"`
	Max   time.Duration `json:"max"`
}

type benchInstance struct {
	Addr  string        `json:"addr"`
	Calls uint64        `json:"calls"`
	P99   time.Duration `json:"p99"`
}

// A load calls a method again and again.
type load struct {
	client   *yodel.Client
	method   *introspect.Method
	args     any
	deadline time.Duration // of each call; 0 for none
	patience time.Duration // how long calls may take when the time is over
	rate     float64

	counters []counter
	due      atomic.Int64 // how many calls of an open loop have been taken
	began    time.Time    // of an open loop's schedule
	late     atomic.Bool  // the calls that are left have no reply
}

// A counter is what one caller has measured. Only done and failed are read meanwhile.
type counter struct {
	done, failed atomic.Uint64
	codes        map[string]uint64     // of calls that failed
	byAddr       map[string]*histogram // "" for calls that went to no instance
	endpoint     *yodel.Endpoint       // of the last call
	last         *histogram            // that of endpoint
	firstError   error
	_            [64]byte // keeps the counters of callers on cache lines of their own
}

// prepare makes the counters of a run, before anything reads them.
func (l *load) prepare(callers int) *load {
	l.counters = make([]counter, callers)
	return l
}

// run runs the callers until ctx ends, and returns when all calls have ended. If some have not
// ended within the patience, it closes the client. A call of prepare precedes each run.
func (l *load) run(ctx context.Context) {
	l.due.Store(0)
	l.began = time.Now()
	var wg sync.WaitGroup
	for i := range l.counters {
		c := &l.counters[i]
		c.codes, c.byAddr = make(map[string]uint64), make(map[string]*histogram)
		wg.Go(func() { l.caller(ctx, c) })
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-ctx.Done():
		case <-ended:
			return
		}
		select {
		case <-time.After(l.patience):
			l.late.Store(true)
			l.client.Close()
		case <-ended:
		}
	}()
	wg.Wait()
	close(ended)
	<-watched
}

// caller makes calls until ctx ends. A closed loop reads the clock once for each call, because the
// measurement must not cost what it measures: the end of a call is the beginning of the next one.
func (l *load) caller(ctx context.Context, c *counter) {
	var reply json.RawMessage
	var call yodel.Call
	// Calls that have begun are measured to their end. Their context has no values: looking for one
	// in the command's context takes 6 % of the processor time of a call.
	whole := context.Background()
	now := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for ctx.Err() == nil {
		began := now
		if l.rate > 0 {
			began = l.began.Add(time.Duration(float64(l.due.Add(1)-1) / l.rate * float64(time.Second)))
			if wait := began.Sub(now); wait > 0 {
				timer.Reset(wait)
				select {
				case <-timer.C:
				case <-ctx.Done():
					return
				}
				now = time.Now()
			}
		}
		call = yodel.Call{Method: l.method.Name, Args: l.args}
		if l.deadline > 0 {
			call.Deadline = now.Add(l.deadline)
		}
		if !l.method.Values {
			call.Reply = &reply
		}
		err := l.client.Do(whole, &call) //nolint:contextcheck // see whole
		now = time.Now()
		if err != nil && l.late.Load() {
			err = yodel.Errorf(yodel.DeadlineExceeded, "no reply within %v of the end of the measurement", l.patience)
		}
		c.count(now.Sub(began), &call, err)
	}
}

func (c *counter) count(took time.Duration, call *yodel.Call, err error) {
	if ep := call.Endpoint; c.last == nil || ep != c.endpoint {
		addr := ""
		if ep != nil {
			addr = ep.Addr()
		}
		if c.byAddr[addr] == nil {
			c.byAddr[addr] = new(histogram)
		}
		c.endpoint, c.last = ep, c.byAddr[addr]
	}
	c.last.add(took)
	if err != nil {
		c.codes[yodel.CodeOf(err).String()]++
		c.failed.Add(1)
		if c.firstError == nil {
			c.firstError = err
		}
	}
	c.done.Add(1)
}

// all returns the latencies of all calls.
func (c *counter) all() *histogram {
	all := new(histogram)
	for _, h := range c.byAddr {
		all.merge(h)
	}
	return all
}

// totals returns the number of calls so far.
func (l *load) totals() (done, failed uint64) {
	for i := range l.counters {
		done += l.counters[i].done.Load()
		failed += l.counters[i].failed.Load()
	}
	return done, failed
}

func (a *app) bench(ctx context.Context, name, body string, o *benchOptions) error {
	if o.callers < 1 || o.length <= 0 {
		return faultf(exitUsage, "-c and -d must be positive")
	}
	conditions, err := parseConditions(o.failIf)
	if err != nil {
		return err
	}
	var baseline *benchResult
	if o.baseline != "" {
		if baseline, err = readResult(o.baseline); err != nil {
			return err
		}
	}
	l, payload, done, err := a.load(ctx, name, body, &o.callOptions, o.conns)
	if err != nil {
		return err
	}
	defer done()
	loop := "closed loop"
	if o.rate > 0 {
		l.rate, loop = o.rate, fmt.Sprintf("open loop, %s calls/s", thousands(o.rate))
	}
	if a.o.output == "table" {
		a.printf("yodel bench %s   %d callers, %s, %s (+%s warm-up), payload %d B, %s\n", shown(l.method.Name), o.callers, loop, o.length, o.warmUp, payload, plural(len(l.client.Endpoints()), "instance"))
	}
	warm, cancel := context.WithTimeout(ctx, o.warmUp)
	l.prepare(o.callers).run(warm)
	cancel()
	for i := range l.counters {
		if e := l.counters[i].firstError; e != nil && (l.late.Load() || l.counters[i].done.Load() == l.counters[i].failed.Load()) {
			return e // nothing works, so there is nothing to measure
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	outBefore, inBefore := bytesOf(l.client)
	began := time.Now()
	measuring, cancel := context.WithTimeout(ctx, o.length)
	defer cancel()
	a.progress(measuring, l, o)
	r := l.result(time.Since(began))
	out, in := bytesOf(l.client)
	r.Method, r.At, r.Callers, r.Target, r.Wire, r.Payload = shown(l.method.Name), began.UTC().Truncate(time.Second), o.callers, o.rate, o.wire, payload
	r.BytesOut, r.BytesIn = out-min(outBefore, out), in-min(inBefore, in)
	return a.finish(ctx, r, l, o, baseline, conditions)
}

// load prepares the calls of a method.
func (a *app) load(ctx context.Context, name, body string, o *callOptions, conns int) (l *load, payload int, done func(), err error) {
	service, last, ok := split(name)
	if !ok {
		return nil, 0, nil, faultf(exitUsage, "%q is no method", name).with("try", "yodel bench SERVICE/METHOD, for example shop.Cart/Get")
	}
	t, err := a.openTarget(ctx)
	if err != nil {
		return nil, 0, nil, err
	}
	t.client.ConnsPerEndpoint = conns
	t.client.Codec = passing{yodel.JSON}
	client, err := a.dial(t, service, o)
	if err != nil {
		_ = t.close()
		return nil, 0, nil, err
	}
	done = func() { client.Close(); _ = t.close() }
	m, err := a.method(ctx, client, service, last, o)
	if err == nil && m.Kind != "" {
		err = faultf(exitUsage, "%s is of the kind %s; only unary methods can be measured", shown(m.Name), m.Kind)
	}
	if err != nil {
		done()
		return nil, 0, nil, a.enrich(ctx, t, service, last, err)
	}
	input, end, err := a.body(ctx, body)
	if err != nil {
		done()
		return nil, 0, nil, err
	}
	defer end()
	in, err := one(messagesOf(m, input))
	l = &load{client: client, method: m, args: in, deadline: o.deadline, patience: a.o.timeout}
	if err == nil && m.Values {
		l.args, err = values(m, *in)
	}
	if err != nil {
		done()
		return nil, 0, nil, err
	}
	return l, len(*in), done, nil
}

// A passing is a codec that passes JSON on as it is. JSON itself would read every request and reply
// once more, and bench would measure that too.
type passing struct{ yodel.Codec }

// Append implements yodel.Codec.
func (p passing) Append(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case *json.RawMessage:
		return append(dst, *v...), nil
	case json.RawMessage:
		return append(dst, v...), nil
	}
	return p.Codec.Append(dst, v)
}

// Decode implements yodel.Codec.
func (p passing) Decode(src []byte, v any) error {
	if m, ok := v.(*json.RawMessage); ok {
		*m = append((*m)[:0], src...)
		return nil
	}
	return p.Codec.Decode(src, v)
}

// bytesOf returns the bytes that a client has sent and received on its open connections.
func bytesOf(c *yodel.Client) (out, in uint64) {
	stats := c.Stats()
	for i := range stats.Endpoints {
		for _, conn := range stats.Endpoints[i].Conns {
			out += conn.BytesOut
			in += conn.BytesIn
		}
	}
	return out, in
}

// progress runs the measurement. On a terminal it shows a line four times a second, from counters
// that the callers need anyway.
func (a *app) progress(ctx context.Context, l *load, o *benchOptions) {
	ended := make(chan struct{})
	l.prepare(o.callers)
	go func() {
		defer close(ended)
		l.run(ctx)
	}()
	if !a.errTTY || a.o.output != "table" {
		<-ended
		return
	}
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	began, last, lastAt := time.Now(), uint64(0), time.Now()
	for {
		select {
		case <-ended:
			a.control(a.err, "\r\x1b[K")
			return
		case now := <-ticker.C:
			done, failed := l.totals()
			share := min(now.Sub(began).Seconds()/o.length.Seconds(), 1)
			bar := strings.Repeat("█", int(share*30)) + strings.Repeat("░", 30-int(share*30))
			a.control(a.err, "\r\x1b[K")
			a.sayf("%3.0fs ▕%s▏ %9s/s   errors %d", now.Sub(began).Seconds(), bar, thousands(float64(done-last)/now.Sub(lastAt).Seconds()), failed)
			last, lastAt = done, now
		}
	}
}

// result merges what the callers have measured.
func (l *load) result(took time.Duration) *benchResult {
	var all histogram
	r := &benchResult{Loop: "closed", Seconds: took.Seconds(), Codes: make(map[string]uint64)}
	if l.rate > 0 {
		r.Loop = "open"
	}
	byAddr := make(map[string]*histogram)
	for i := range l.counters {
		c := &l.counters[i]
		all.merge(c.all())
		if ok := c.done.Load() - c.failed.Load(); ok > 0 {
			r.Codes["ok"] += ok
		}
		for code, n := range c.codes {
			r.Codes[code] += n
		}
		for addr, h := range c.byAddr {
			if byAddr[addr] == nil {
				byAddr[addr] = new(histogram)
			}
			byAddr[addr].merge(h)
		}
	}
	r.Calls, r.Rate = all.n, float64(all.n)/took.Seconds()
	r.OK = float64(r.Codes["ok"]) / float64(max(all.n, 1))
	r.Latency = latency{
		Min: all.min, P50: all.quantile(0.5), P90: all.quantile(0.9), P99: all.quantile(0.99), P999: all.quantile(0.999), P9999: all.quantile(0.9999),
		Max: all.max, Mean: all.sum / time.Duration(max(all.n, 1)), //nolint:gosec // fewer calls than 2^63
	}
	r.Histogram = all.bars()
	delete(byAddr, "")
	for _, addr := range slices.Sorted(maps.Keys(byAddr)) {
		r.Instances = append(r.Instances, benchInstance{addr, byAddr[addr].n, byAddr[addr].quantile(0.99)})
	}
	return r
}

// finish prints and saves a result, and compares it with the baseline and the conditions.
func (a *app) finish(ctx context.Context, r *benchResult, l *load, o *benchOptions, baseline *benchResult, conditions []condition) error {
	if err := a.show(r, text(r.text(l)), func() []string { return []string{r.Method} }); err != nil {
		return err
	}
	var unsaved error
	if !o.noSave {
		path := o.save
		if path == "" {
			path = filepath.Join(".yodel", "bench", time.Now().Format("2006-01-02T150405")+".json")
		}
		if unsaved = writeResult(path, r); unsaved != nil {
			a.sayf(" the result is not saved: %v\n", unsaved)
		} else {
			a.sayf(" saved %s   compare: yodel bench … --baseline %s --fail-if 'p99>+10%%'\n", path, path)
		}
	}
	if baseline != nil && a.o.output == "table" {
		a.print(compared(baseline, r))
	}
	for i := range l.counters {
		if e := l.counters[i].firstError; e != nil {
			a.sayf(" first error: %v\n", e)
			break
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	broken := faultf(exitCheck, "")
	for _, c := range conditions {
		holds, why, err := c.holds(r, baseline)
		if err != nil {
			return err
		}
		if holds {
			broken.text = strings.TrimPrefix(broken.text+"\n"+why, "\n")
		}
	}
	switch {
	case broken.text != "":
		return broken
	case unsaved != nil:
		return &fault{code: exitFailed} // it is said above
	}
	return nil
}

// text returns the summary for people.
func (r *benchResult) text(l *load) string {
	var all histogram
	for i := range l.counters {
		all.merge(l.counters[i].all())
	}
	var b strings.Builder
	fprintf(&b, " calls %s   rate %s/s   ok %.3f%%   in %.1fs", thousands(float64(r.Calls)), thousands(r.Rate), 100*r.OK, r.Seconds)
	if r.BytesOut > 0 {
		fprintf(&b, "   bytes %s out / %s in", size(r.BytesOut), size(r.BytesIn))
	}
	x := r.Latency
	fprintf(&b, "\n latency  min %s  p50 %s  p90 %s  p99 %s  p99.9 %s  p99.99 %s  max %s\n", brief(x.Min), brief(x.P50), brief(x.P90), brief(x.P99), brief(x.P999), brief(x.P9999), brief(x.Max))
	b.WriteString(all.String())
	b.WriteString(" by instance")
	for _, in := range r.Instances {
		fprintf(&b, "  %s %s p99 %s", in.Addr, percent(float64(in.Calls)/float64(max(r.Calls, 1))), brief(in.P99))
	}
	b.WriteString("\n by code     ")
	for _, code := range slices.Sorted(maps.Keys(r.Codes)) {
		fprintf(&b, " %s %s", code, thousands(float64(r.Codes[code])))
	}
	b.WriteString("\n")
	if r.Loop == "closed" {
		fprintf(&b, " note  a closed loop hides queueing (coordinated omission). For latency at a fixed load: --rate %.0f\n", max(r.Rate*0.65, 1))
	}
	return b.String()
}

// size returns bytes for people.
func size(n uint64) string {
	switch f := float64(n); {
	case n < 10_000:
		return fmt.Sprintf("%d B", n)
	case n < 10_000_000:
		return fmt.Sprintf("%.0f kB", f/1e3)
	default:
		return fmt.Sprintf("%.0f MB", f/1e6)
	}
}

func writeResult(path string, r *benchResult) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // results are no secret
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644) //nolint:gosec // as above
}

func readResult(path string) (*benchResult, error) {
	f, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, faultf(exitUsage, "the baseline: %v", err)
	}
	defer f.Close()
	r := new(benchResult)
	if err := json.NewDecoder(io.LimitReader(f, 1<<24)).Decode(r); err != nil || r.Calls == 0 {
		return nil, faultf(exitUsage, "the baseline %s is no result of yodel bench", path)
	}
	return r, nil
}

// A condition is a part of --fail-if.
type condition struct {
	text     string
	name     string
	more     bool    // > rather than <
	value    float64 // a duration in nanoseconds, a share, or a rate
	relative bool    // value is a change of the baseline's value, as a share
	share    bool    // value is a share of the calls
}

var conditionForm = regexp.MustCompile(`^(min|mean|p50|p90|p99|p99\.9|p99\.99|max|rate|ok|errors)\s*([<>])\s*([+-]?[0-9.]+)\s*(%|ns|us|µs|ms|s|)$`)

func parseConditions(list string) ([]condition, error) {
	var all []condition
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		m := conditionForm.FindStringSubmatch(part)
		if m == nil {
			return nil, faultf(exitUsage, "--fail-if: %q is no condition", part).with("examples", "p99>10ms  p99>+10%%  rate<-5%%  rate<1000  ok<99.9%%  errors>0  errors>1%%")
		}
		c := condition{text: part, name: m[1], more: m[2] == ">"}
		number, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, faultf(exitUsage, "--fail-if: %q is no number", m[3])
		}
		signed := m[3][0] == '+' || m[3][0] == '-'
		isTime := c.name != "rate" && c.name != "ok" && c.name != "errors"
		c.share = c.name == "errors" && m[4] == "%" && !signed
		units := map[string]float64{"": 1, "%": 0.01, "ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
		c.value, c.relative = number*units[m[4]], m[4] == "%" && (signed || isTime || c.name == "rate")
		if isTime && m[4] == "" || !isTime && m[4] != "" && m[4] != "%" {
			return nil, faultf(exitUsage, "--fail-if: %q has the wrong unit", part)
		}
		all = append(all, c)
	}
	return all, nil
}

// measure returns a value of a result by its name in conditions.
func (r *benchResult) measure(name string) float64 {
	x := r.Latency
	switch name {
	case "rate":
		return r.Rate
	case "ok":
		return r.OK
	case "errors":
		return float64(r.Calls - r.Codes["ok"])
	}
	times := map[string]time.Duration{
		"min": x.Min, "mean": x.Mean, "p50": x.P50, "p90": x.P90, "p99": x.P99, "p99.9": x.P999, "p99.99": x.P9999, "max": x.Max,
	}
	return float64(times[name])
}

// holds reports whether a condition holds, and says why.
func (c *condition) holds(r, baseline *benchResult) (holds bool, why string, err error) {
	value, limit := r.measure(c.name), c.value
	if c.relative {
		if baseline == nil {
			return false, "", faultf(exitUsage, "--fail-if: %q compares with a baseline, and there is none", c.text).with("next", "give --baseline FILE")
		}
		limit = baseline.measure(c.name) * (1 + c.value)
	}
	if c.share {
		value /= float64(max(r.Calls, 1))
	}
	holds = value < limit
	if c.more {
		holds = value > limit
	}
	return holds, fmt.Sprintf("%s: it is %s, and the limit is %s", c.text, c.format(value), c.format(limit)), nil
}

func (c *condition) format(value float64) string {
	switch {
	case c.name == "rate":
		return thousands(value) + "/s"
	case c.name == "ok", c.share:
		return fmt.Sprintf("%.3f%%", 100*value)
	case c.name == "errors":
		return thousands(value)
	}
	return brief(time.Duration(value))
}

// compared returns the differences between two results.
func compared(before, now *benchResult) string {
	var b strings.Builder
	b.WriteString(" against the baseline")
	for _, name := range []string{"rate", "p50", "p99", "p99.9"} {
		old := before.measure(name)
		if old == 0 {
			continue
		}
		c := condition{name: name}
		fprintf(&b, "   %s %s → %s (%+.1f%%)", name, c.format(old), c.format(now.measure(name)), 100*(now.measure(name)/old-1))
	}
	return b.String() + "\n"
}
