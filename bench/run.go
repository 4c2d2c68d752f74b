// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A hello is what a server says when it listens.
type hello struct {
	Addr    string `json:"addr"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Setup   string `json:"setup"`

	Certificate string `json:"certificate"` // with TLS

	event // instead of all that, when it cannot serve
}

// Counters are those of a language's runtime; zero where it has none.
type counters struct {
	Mallocs float64 `json:"mallocs"`
	Bytes   float64 `json:"bytes"`
	GCs     float64 `json:"gcs"`
}

// An event is what a client says.
type event struct {
	Event      string  `json:"event"`    // ready, done or error
	Text       string  `json:"text"`     // of an error
	Declined   bool    `json:"declined"` // of an error: the load is nothing that it can do
	Calls      float64 `json:"calls"`
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error"`
	Seconds    float64 `json:"seconds"`
	Latency    Latency `json:"latency_us"`
	Late       int64   `json:"late"`
	Beside     float64 `json:"beside"`
	counters
}

// An order is a line that a program reads after the first.
type order struct {
	Do string `json:"do"` // go or figures
}

// A timing says how long the parts of a run take.
type timing struct {
	warmup, measure time.Duration
	// for an answer that takes no time of its own; a wait for it that lasts longer is a hang
	patience time.Duration
	grace    time.Duration // for a program to end after its input has
}

// errCannot is a client's word that it does not do such a load.
type errCannot string

func (e errCannot) Error() string { return string(e) }

// A bout is one run that goes on: fresh processes of one peer, or of its server and another peer's
// client.
type bout struct {
	peer     program
	scenario Scenario
	timing   timing
	info     PeerInfo
	servers  []*process
	clients  []*process
}

// errNoCall says that no call both began in the measurement and came back.
var errNoCall = errors.New("no call began and came back")

// longestMeasure is how long those are measured at most who are too slow for the time that suits
// the others. Who makes no call in it is broken.
const longestMeasure = 20 * time.Second

// fight runs a scenario once, and once more with a longer measurement when it was too short for the
// peer.
func fight(ctx context.Context, peer program, s Scenario, t timing) (Result, PeerInfo) {
	result, info, err := once(ctx, peer, s, t)
	for wanted := t.measure; errors.Is(err, errNoCall) && 4*t.measure <= longestMeasure; {
		t.measure *= 4
		if result, info, err = once(ctx, peer, s, t); err == nil {
			note := fmt.Sprintf("measured for %s, since %s within %s", t.measure, errNoCall, wanted)
			result.Note = strings.TrimSuffix(note+"; "+result.Note, "; ")
		}
	}
	return result, info
}

// once runs a scenario with fresh processes, and ends all of them.
func once(ctx context.Context, peer program, s Scenario, t timing) (Result, PeerInfo, error) {
	b := &bout{
		peer: peer, scenario: s, timing: t,
		info: PeerInfo{Key: peer.key, Kind: peer.kind},
	}
	result, err := b.run(ctx)
	ending := b.stop()
	result.Scenario, result.Peer = s.Name, peer.key
	var cannot errCannot
	switch {
	case errors.As(err, &cannot):
		result.Cannot = string(cannot)
	case err != nil:
		result.Problem = err.Error() + b.lostServers(err)
	case ending != nil:
		result.Note = ending.Error()
	}
	return result, b.info, err
}

// lostServers says which servers have not ended as they should, beyond what the error says: a
// client whose server has died says only that its connection is gone.
func (b *bout) lostServers(err error) (text string) {
	for _, server := range b.servers {
		if server.ending != nil && !strings.Contains(err.Error(), server.name) {
			text += "; " + server.ending.Error()
		}
	}
	return text
}

// run starts the servers and the clients, lets them warm up, and measures.
func (b *bout) run(ctx context.Context) (Result, error) {
	addrs, certificates, err := b.serve(ctx)
	if err != nil {
		return Result{}, err
	}
	load := b.scenario.Load
	load.Addrs, load.Certificate = addrs, certificates
	load.WarmupMS, load.MeasureMS = int(b.timing.warmup.Milliseconds()), int(b.timing.measure.Milliseconds())
	if err := b.load(ctx, load); err != nil {
		return Result{}, err
	}
	return b.measure(ctx)
}

// serve starts the servers and returns their addresses, and with TLS their certificates.
func (b *bout) serve(ctx context.Context) (addrs []string, certificates string, err error) {
	role := "serve"
	if b.scenario.TLS {
		role = "serve-tls"
	}
	for range orOne(b.scenario.Servers) {
		server, err := b.start(b.peer, role)
		if err != nil {
			return nil, "", err
		}
		b.servers = append(b.servers, server)
	}
	for _, server := range b.servers {
		var said hello
		if err := server.hear(ctx, b.timing.patience, "its address", &said); err != nil {
			return nil, "", err
		}
		if said.Addr == "" {
			return nil, "", fmt.Errorf("%s does not serve: %s", server.name, said.Text)
		}
		b.info.Name, b.info.Version, b.info.Setup = cmp.Or(b.peer.name, said.Name), said.Version, said.Setup
		addrs = append(addrs, said.Addr)
		certificates += said.Certificate
	}
	return addrs, certificates, nil
}

// load starts the clients and returns when all have warmed up. They go on calling.
func (b *bout) load(ctx context.Context, load Load) error {
	caller := b.peer
	if b.peer.client != nil {
		caller = *b.peer.client
	}
	for range orOne(b.scenario.Clients) {
		client, err := b.start(caller, "load")
		if err != nil {
			return err
		}
		b.clients = append(b.clients, client)
		if err := client.tell(load); err != nil {
			return err
		}
	}
	for _, client := range b.clients {
		if _, err := hearEvent(ctx, client, b.timing.warmup+b.timing.patience+b.scenario.connecting(), "ready"); err != nil {
			return err
		}
	}
	return nil
}

func (b *bout) start(p program, what string) (*process, error) {
	argv := append(append([]string{}, p.argv...), what)
	return startProcess(p.key+" "+what, p.dir, b.timing.grace, argv...)
}

// measure lets the clients count, and adds up what they and the kernel say.
//
// What the kernel counts is taken over as long as the clients count, and beginning with them, but
// for an open loop not to the end of the last call: calls of before the measurement, which do not
// count, use as much after its begin as those that do count use after its end. Several thousand
// callers of a slow peer would else make each call dearer than it is. An open loop is to make all
// its calls, however late, and has few open where it keeps up.
func (b *bout) measure(ctx context.Context) (Result, error) {
	before, err := b.look(ctx)
	if err != nil {
		return Result{}, err
	}
	for _, client := range b.clients {
		if err := client.tell(order{Do: "go"}); err != nil {
			return Result{}, err
		}
	}
	var after *sight
	if b.scenario.Load.Mode != "open" {
		if after, err = b.lookAt(ctx, before.at.Add(b.timing.measure)); err != nil {
			return Result{}, err
		}
	}
	var done []event
	for _, client := range b.clients {
		e, err := hearEvent(ctx, client, b.timing.measure+b.timing.patience+b.scenario.catchingUp(b.timing), "done")
		if err != nil {
			return Result{}, err
		}
		done = append(done, e)
	}
	r := sum(done, max(1, b.scenario.Load.Messages))
	if r.Calls == 0 && r.Errors == 0 {
		return r, fmt.Errorf("%w within %s", errNoCall, b.timing.measure)
	}
	if after == nil {
		if after, err = b.look(ctx); err != nil {
			return Result{}, err
		}
	}
	b.use(&r, before, after, done)
	return r, nil
}

// use adds what the processes have used between two looks. When these are further apart than the
// time in which the calls were made, or nearer to each other, it is scaled, since their number is
// that of this time.
func (b *bout) use(r *Result, before, after *sight, done []event) {
	r.Wire, r.Packets = after.wire.bytes-before.wire.bytes, after.wire.packets-before.wire.packets
	r.Client = side(b.clients, before, after)
	r.Server = side(b.servers, before, after)
	for _, server := range b.servers {
		r.Server.add(after.of[server].counters, 1)
		r.Server.add(before.of[server].counters, -1)
	}
	seconds := 0.0
	for _, e := range done {
		r.Client.add(e.counters, 1)
		seconds += e.Seconds / float64(len(done))
	}
	if b.scenario.Load.Mode != "open" && seconds > 0 {
		r.divide(after.at.Sub(before.at).Seconds() / seconds)
	}
}

// hearEvent waits for the event that is wanted.
func hearEvent(ctx context.Context, client *process, timeout time.Duration, wanted string) (event, error) {
	var e event
	if err := client.hear(ctx, timeout, "its event "+wanted, &e); err != nil {
		return e, err
	}
	switch e.Event {
	case wanted:
		return e, nil
	case "error":
		if e.Declined {
			return e, errCannot(e.Text)
		}
		return e, fmt.Errorf("%s: %s", client.name, e.Text)
	default:
		return e, fmt.Errorf("%s said %q instead of %s", client.name, e.Event, wanted)
	}
}

// A look is what is known of a process at one moment.
type look struct {
	usage

	memory, peak uint64
	counters     // of a server; a client reports its own
}

// A sight is what is known of all processes.
type sight struct {
	at   time.Time
	wire wire
	of   map[*process]look
}

// lookAt looks when the time has come.
func (b *bout) lookAt(ctx context.Context, at time.Time) (*sight, error) {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return b.look(ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// look asks the kernel about all processes, and then the servers about their runtimes: they may
// take a while.
func (b *bout) look(ctx context.Context) (*sight, error) {
	seen := &sight{at: time.Now(), of: make(map[*process]look)}
	var err error
	if seen.wire, err = wireOf(); err != nil {
		return nil, err
	}
	for _, p := range append(append([]*process{}, b.clients...), b.servers...) {
		l, err := lookAtProcess(p.pid())
		if err != nil {
			return nil, p.fate(err)
		}
		seen.of[p] = l
	}
	for _, server := range b.servers {
		if err := server.tell(order{Do: "figures"}); err != nil {
			return nil, err
		}
		l := seen.of[server]
		if err := server.hear(ctx, b.timing.patience, "its figures", &l.counters); err != nil {
			return nil, err
		}
		seen.of[server] = l
	}
	return seen, nil
}

func lookAtProcess(pid int) (l look, err error) {
	if l.usage, err = usageOf(pid); err != nil {
		return l, err
	}
	l.memory, l.peak, err = memoryOf(pid)
	return l, err
}

// side adds up what the processes of one side have used.
func side(processes []*process, before, after *sight) Side {
	var s Side
	for _, p := range processes {
		from, to := before.of[p], after.of[p]
		s.CPU += (to.cpu - from.cpu).Seconds()
		s.Reads += float64(to.reads - from.reads)
		s.Writes += float64(to.writes - from.writes)
		s.BytesIn += float64(to.bytesIn - from.bytesIn)
		s.BytesOut += float64(to.bytesOut - from.bytesOut)
		s.Memory += float64(to.memory)
		s.Peak += float64(to.peak)
	}
	return s
}

func (s *Side) add(c counters, factor float64) {
	s.Mallocs += factor * c.Mallocs
	s.Bytes += factor * c.Bytes
	s.GCs += factor * c.GCs
}

// sum makes one result of what the clients have said. A call of a stream counts as its messages.
func sum(done []event, messages int) Result {
	r := Result{Latency: done[0].Latency}
	var l Latency
	for _, e := range done {
		r.Calls += e.Calls * float64(messages)
		r.Errors += e.Errors
		r.Late += e.Late
		if r.FirstError == "" {
			r.FirstError = e.FirstError
		}
		if e.Seconds > 0 {
			r.Rate += e.Calls * float64(messages) / e.Seconds
			r.Beside += e.Beside / e.Seconds
		}
		n := float64(len(done))
		l.Mean += e.Latency.Mean / n
		l.P50 += e.Latency.P50 / n
		l.P90 += e.Latency.P90 / n
		l.P99 += e.Latency.P99 / n
		l.P999 += e.Latency.P999 / n
		r.Latency.Min = min(r.Latency.Min, e.Latency.Min)
		r.Latency.Max = max(r.Latency.Max, e.Latency.Max)
	}
	l.Min, l.Max = r.Latency.Min, r.Latency.Max
	r.Latency = l
	return r
}

// stop ends the clients and then the servers.
func (b *bout) stop() error {
	var problems []error
	for _, p := range append(append([]*process{}, b.clients...), b.servers...) {
		p.ending = p.stop()
		problems = append(problems, p.ending)
	}
	return errors.Join(problems...)
}
