// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain makes the test binary a peer's program too: `BINARY fake BEHAVIOUR serve|load`.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "fake" {
		fake(os.Args[2], os.Args[3])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fake speaks the process protocol without making calls. Its behaviour is something that it does
// wrong, and in which role.
func fake(behaviour, role string) {
	wrong := ""
	for one := range strings.FieldsSeq(behaviour) {
		if what, in, _ := strings.Cut(one, "@"); in == role {
			wrong = what
		}
	}
	input := bufio.NewScanner(os.Stdin)
	switch wrong {
	case "dies":
		panic("out of luck")
	case "garbage":
		fmt.Println("Welcome to my framework!")
	case "flood":
		for range 64 {
			fmt.Print(strings.Repeat("x", 1<<16))
		}
	case "hangs":
		signal.Ignore(syscall.SIGTERM)
		forever()
	case "outlives":
		defer forever()
	}
	if pipe, ok := strings.CutPrefix(behaviour, "drains "); ok {
		drains(pipe, role)
		return
	}
	if role == "serve-tls" {
		fmt.Println(`{"addr":"127.0.0.1:1","certificate":"one of mine\n"}`)
		for input.Scan() {
			fmt.Println(`{}`)
		}
		return
	}
	if role == "serve" {
		fmt.Println(`{"addr":"127.0.0.1:1","name":"Fake","version":"v1","setup":"none"}`)
		for n := 1; input.Scan(); n++ {
			fmt.Printf(`{"mallocs":%d,"bytes":%d,"gcs":%d}`+"\n", n*100, n*1000, n)
			if wrong == "falls" {
				panic("out of luck")
			}
		}
		if wrong == "fell" {
			panic("out of luck")
		}
		return
	}
	input.Scan()
	var load Load
	if err := json.Unmarshal(input.Bytes(), &load); err != nil {
		panic(err)
	}
	if load.Certificate != "" {
		fmt.Printf(`{"event":"error","text":%q}`+"\n", load.Certificate)
		os.Exit(1)
	}
	if load.Work == "stream" {
		fmt.Println(`{"event":"error","text":"no streams here","declined":true}`)
		os.Exit(1)
	}
	fmt.Println(`{"event":"ready"}`)
	input.Scan()
	if wrong == "fails" {
		fmt.Println(`{"event":"error","text":"lost the server"}`)
		os.Exit(1)
	}
	calls := 1000
	if wrong == "stuck" || wrong == "slow" && load.MeasureMS < 10 {
		calls = 0
	}
	fmt.Printf(`{"event":"done","calls":%d,"errors":0,"seconds":0.5,`+
		`"latency_us":{"min":1,"mean":2,"p50":2,"p90":3,"p99":4,"p999":5,"max":6},"mallocs":2000,"bytes":64000,"gcs":1}`+"\n", calls)
	for input.Scan() {
	}
}

// drains is a peer whose last calls take until its server is looked at for the second time, and use
// a lot after that: they are two of a thousand. A named pipe tells the client.
func drains(pipe, role string) {
	input := bufio.NewScanner(os.Stdin)
	if role == "serve" {
		fmt.Println(`{"addr":"127.0.0.1:1","name":"Fake","version":"v1","setup":"none"}`)
		for n := 1; input.Scan(); n++ {
			fmt.Println(`{}`)
			if n == 2 {
				closeOrPanic(os.OpenFile(pipe, os.O_WRONLY, 0))
			}
		}
		return
	}
	input.Scan()
	fmt.Println(`{"event":"ready"}`)
	input.Scan()
	closeOrPanic(os.Open(pipe)) // when the server opens it, too
	for range 10_000 {
		fmt.Fprintln(os.Stderr, "a call ends")
	}
	fmt.Println(`{"event":"done","calls":1000,"seconds":0.001,"latency_us":{}}`)
	input.Scan()
}

func closeOrPanic(f *os.File, err error) {
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		panic(err)
	}
}

// forever is out of reach of the runtime's search for deadlocks.
func forever() {
	for {
		syscall.Pause() //nolint:errcheck // it always says that it was interrupted
	}
}

func fakePeer(t *testing.T, key, behaviour string) program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return program{key: key, kind: kindOf(key), argv: []string{self, "fake", behaviour}}
}

// Timings: one that waits as long as a busy machine needs, and one for those who would be waited
// for in vain.
var (
	patiently = timing{warmup: time.Millisecond, measure: time.Millisecond, patience: time.Minute, grace: time.Minute}
	briefly   = timing{warmup: time.Millisecond, measure: time.Millisecond, patience: 4 * time.Second, grace: 2 * time.Second}
)

func TestRunAddsUpProcesses(t *testing.T) {
	t.Parallel()
	s := Scenario{Name: "s", Load: closed(1), Servers: 2, Clients: 3}
	r, info := fight(context.Background(), fakePeer(t, "fake", ""), s, patiently)
	if r.Problem != "" || r.Cannot != "" || r.Note != "" {
		t.Fatalf("problem %q, cannot %q, note %q", r.Problem, r.Cannot, r.Note)
	}
	if info.Name != "Fake" || info.Version != "v1" || info.Setup != "none" {
		t.Errorf("the peer is %+v", info)
	}
	if r.Calls != 3000 || r.Rate != 6000 {
		t.Errorf("got %v calls and %v a second, want 3000 and 6000", r.Calls, r.Rate)
	}
	// 6000 and 200, in half a second of calls for each that the kernel was asked about.
	if math.Abs(r.Client.Mallocs/r.Server.Mallocs-30) > 1e-9 {
		t.Errorf("got %v and %v allocations, want 30 to 1", r.Client.Mallocs, r.Server.Mallocs)
	}
	if want := (Latency{1, 2, 2, 3, 4, 5, 6}); r.Latency != want {
		t.Errorf("got latency %+v, want %+v", r.Latency, want)
	}
	if r.Client.CPU <= 0 || r.Client.Peak < 1<<20 || r.Server.Writes < 2 || r.Server.BytesIn < 2 {
		t.Errorf("the kernel counted %+v and %+v", r.Client, r.Server)
	}
}

// The calls that are open at the end of a measurement are done when it is over, as those that were
// open at its begin were.
func TestWhatIsUsedAfterTheMeasurementDoesNotCount(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	r, _ := fight(context.Background(), fakePeer(t, "fake", "drains "+pipe), Scenario{Load: closed(1000)}, patiently)
	if r.Problem != "" || r.Calls != 1000 {
		t.Fatalf("problem %q, %v calls", r.Problem, r.Calls)
	}
	if r.Client.BytesOut > 10_000 {
		t.Errorf("the client wrote %v bytes in %v writes", r.Client.BytesOut, r.Client.Writes)
	}
}

func TestWhatIsUsedIsThatOfTheTimeOfTheCalls(t *testing.T) {
	t.Parallel()
	client, server, now := &process{}, &process{}, time.Now()
	b := &bout{clients: []*process{client}, servers: []*process{server}, scenario: Scenario{Load: closed(10)}}
	at := func(after time.Duration, n uint64) *sight {
		l := look{usage: usage{cpu: time.Duration(n) * time.Second, writes: 10 * n}, memory: 5, peak: 6, counters: counters{Mallocs: float64(100 * n)}}
		return &sight{now.Add(after), wire{float64(1000 * n), float64(n)}, map[*process]look{client: l, server: l}}
	}
	done := []event{{Seconds: 0.5, counters: counters{Mallocs: 70}}}
	used := Side{CPU: 1.5, Writes: 15, Memory: 5, Peak: 6}
	want := Result{Client: used, Server: used, Wire: 1500, Packets: 1.5}
	want.Client.Mallocs, want.Server.Mallocs = 35, 150
	var got Result
	if b.use(&got, at(0, 1), at(time.Second, 4), done); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// An open loop has made all its calls when it is looked at.
	b.scenario.Load = open(10)
	want.divide(0.5)
	got = Result{}
	if b.use(&got, at(0, 1), at(time.Second, 4), done); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestRunSaysOfWhatTheServerHasDied(t *testing.T) {
	t.Parallel()
	for _, behaviour := range []string{"falls@serve", "fell@serve"} {
		peer := fakePeer(t, "fake", behaviour)
		if behaviour == "fell@serve" { // the client has the first word
			peer = fakePeer(t, "fake", "fell@serve fails@load")
		}
		r, _ := fight(context.Background(), peer, Scenario{Load: closed(1)}, patiently)
		if !strings.Contains(r.Problem, "panic: out of luck") {
			t.Errorf("%s: got %q", behaviour, r.Problem)
		}
	}
}

func TestAProcessThatIsGoneIsNotLookedAt(t *testing.T) {
	t.Parallel()
	peer := fakePeer(t, "fake", "")
	p, err := startProcess("fake serve", "", time.Minute, append(peer.argv[:2:2], "dies@serve", "serve")...)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.hear(context.Background(), time.Minute, "its address", new(hello)); err == nil {
		t.Fatal("it lives")
	}
	_, err = lookAtProcess(p.pid())
	if err == nil {
		t.Fatal("it can be looked at")
	}
	if said := p.fate(err).Error(); !strings.Contains(said, "fake serve ended (exit status 2)") || !strings.Contains(said, "panic: out of luck") {
		t.Errorf("got %s", said)
	}
}

func TestRunCountsMessagesOfStreams(t *testing.T) {
	t.Parallel()
	r := sum([]event{{Calls: 3, Seconds: 2}}, 100)
	if r.Calls != 300 || r.Rate != 150 {
		t.Errorf("got %v messages and %v a second, want 300 and 150", r.Calls, r.Rate)
	}
}

func TestRunSaysWhatWentWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ behaviour, want string }{
		{"dies@serve", "fake serve ended (exit status 2) instead of saying its address: panic: out of luck"},
		{"dies@load", "fake load"}, // it may be gone when it is told its load
		{"garbage@serve", `fake serve printed "Welcome to my framework!" instead of its address`},
		{"garbage@load", `fake load printed "Welcome to my framework!" instead of its event ready`},
		{"flood@load", "fake load instead of its event ready: bufio.Scanner: token too long"},
		{"hangs@serve", "fake serve hangs: it has not said its address within 4s"},
		{"hangs@load", "fake load hangs: it has not said its event ready within 4.011s"},
		{"fails@load", "fake load: lost the server"},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			limits := patiently
			if strings.HasPrefix(c.behaviour, "hangs") {
				limits = briefly
			}
			r, _ := fight(context.Background(), fakePeer(t, "fake", c.behaviour), Scenario{Load: closed(1)}, limits)
			if !strings.HasPrefix(r.Problem, c.want) {
				t.Errorf("got %q, want %q", r.Problem, c.want)
			}
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestRunKillsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	r, _ := fight(context.Background(), fakePeer(t, "fake", "outlives@serve"), Scenario{Load: closed(1)}, briefly)
	if r.Problem != "" || !strings.Contains(r.Note, "fake serve was killed") || r.Calls != 1000 {
		t.Errorf("got problem %q, note %q, %v calls", r.Problem, r.Note, r.Calls)
	}
}

// The kernel's figures of this process are compared with what it has done.
func TestUsage(t *testing.T) { //nolint:paralleltest // other tests would be counted too
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	const times, size = 20_000, 100
	before, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for range times {
		if _, err := null.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if n, err := null.Read(make([]byte, size)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatal(n, err)
		}
	}
	after, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var all syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &all); err != nil {
		t.Fatal(err)
	}
	for what, n := range map[string]uint64{"writes": after.writes - before.writes, "reads": after.reads - before.reads, "bytes": (after.bytesOut - before.bytesOut) / size} {
		if n < times || n > times+100 { // the runtime and the reading of /proc make a few
			t.Errorf("got %d %s, want %d", n, what, times)
		}
	}
	cpu, whole := after.cpu, time.Duration(all.Utime.Nano()+all.Stime.Nano())
	if after.cpu <= before.cpu || (whole-cpu).Abs() > 20*time.Millisecond {
		t.Errorf("got %s of processor time, and then %s; the whole is %s", before.cpu, cpu, whole)
	}
	now, peak, err := memoryOf(os.Getpid())
	if err != nil || now < 1<<20 || peak < now {
		t.Errorf("got %d of memory, %d at the peak, %v", now, peak, err)
	}
	if w, err := wireOf(); err != nil || w.bytes <= 0 || w.packets <= 0 {
		t.Errorf("loopback carried %+v, %v", w, err)
	}
}

func TestPlanInterleavesAndRotates(t *testing.T) {
	t.Parallel()
	p := plan{
		programs:  []program{fakePeer(t, "yodel", ""), fakePeer(t, "raw", ""), fakePeer(t, "slow", "dies@serve")},
		scenarios: []Scenario{{Name: "a", Load: closed(1)}, {Name: "b", Load: Load{Work: "stream"}}},
		rounds:    2, timing: patiently,
	}
	var r Report
	var tables []string
	var progressed strings.Builder
	show := &progress{out: &progressed}
	p.carryOut(context.Background(), &r, show, func(s Scenario) { tables = append(tables, s.Name) })
	var got []string
	for _, run := range r.Results {
		got = append(got, fmt.Sprintf("%s%d:%s", run.Scenario, run.Round, run.Peer))
	}
	want := "a1:yodel a1:raw a1:slow a2:raw a2:slow a2:yodel b1:yodel b1:raw b1:slow b2:slow"
	if strings.Join(got, " ") != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	if strings.Join(tables, " ") != "a b" {
		t.Errorf("tables after %v", tables)
	}
	if !r.cannot("b", "yodel") || r.cannot("b", "slow") {
		t.Error("a peer that declines and one that dies are not told apart")
	}
	if len(r.failures()) != 4 {
		t.Errorf("failures: %q", r.failures())
	}
	if show.finished != 12 || !strings.Contains(progressed.String(), "declines: no streams here") {
		t.Errorf("progress of %d runs:\n%s", show.finished, progressed.String())
	}
}

func TestAGroupSharesItsRounds(t *testing.T) {
	t.Parallel()
	p := plan{
		programs: []program{fakePeer(t, "yodel", ""), fakePeer(t, "raw", "")},
		scenarios: []Scenario{
			{Name: "a", Load: closed(1), Group: "g"}, {Name: "nobody", Load: closed(1), Peers: []string{"x"}},
			{Name: "b", Load: closed(2), Group: "g"}, {Name: "c", Load: closed(3)},
		},
		rounds: 2, timing: patiently,
	}
	var r Report
	var order, tables []string
	p.carryOut(context.Background(), &r, &progress{out: io.Discard}, func(s Scenario) {
		tables = append(tables, fmt.Sprintf("%s%d", s.Name, len(r.Results)))
	})
	for _, run := range r.Results {
		order = append(order, fmt.Sprintf("%s%d:%s", run.Scenario, run.Round, run.Peer))
	}
	if got, want := strings.Join(order, " "), "a1:yodel a1:raw b1:yodel b1:raw a2:raw a2:yodel b2:raw b2:yodel c1:yodel c1:raw c2:raw c2:yodel"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := strings.Join(tables, " "), "a8 b8 c12"; got != want {
		t.Errorf("tables after so many runs: %s, want %s", got, want)
	}
	if got, want := r.standing("b", 2, 2), "b, round 2 of 2, calls/s: Fake 2.00k, Fake 2.00k"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A scenario that names a client runs that peer's client with the servers of the others. The fake
// server dies if it is started as a client, and the fake client if it is started as a server.
func TestAScenarioNamesItsClient(t *testing.T) {
	t.Parallel()
	server, client := fakePeer(t, "server", "dies@load"), fakePeer(t, "client", "dies@serve")
	client.callsOnly = true
	scenarios := []Scenario{{Name: "a", Load: closed(1), Client: "client"}, {Name: "b", Load: closed(1), Client: "absent"}, {Name: "c", Load: closed(1)}}
	p := plan{programs: []program{server, client}, scenarios: scenarios, rounds: 2, timing: patiently}
	var r Report
	p.carryOut(context.Background(), &r, &progress{out: io.Discard}, func(Scenario) {})
	var got []string
	for _, run := range r.Results {
		got = append(got, fmt.Sprintf("%s%d:%s:%v", run.Scenario, run.Round, run.Peer, run.Problem == ""))
	}
	if got, want := strings.Join(got, " "), "a1:server:true a2:server:true c1:server:false c2:server:false"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if p.runs() != len(r.Results) {
		t.Errorf("%d runs were planned, and there were %d", p.runs(), len(r.Results))
	}
	if len(r.Peers) != 1 || r.Peers[0].Key != "server" {
		t.Errorf("the peers are %+v", r.Peers)
	}
}

// With TLS the servers are started to serve it, and the client gets their certificates. The fake
// client says what it has got, and fails.
func TestClientsGetTheCertificatesOfTheServers(t *testing.T) {
	t.Parallel()
	s := Scenario{Load: closed(1), TLS: true, Servers: 2}
	r, _ := fight(context.Background(), fakePeer(t, "fake", ""), s, patiently)
	if want := "fake load: one of mine\none of mine\n"; r.Problem != want {
		t.Errorf("got %q, want %q", r.Problem, want)
	}
}

// A scenario that needs a longer measurement than the others gets it.
func TestAScenarioIsMeasuredForItsOwnTime(t *testing.T) {
	t.Parallel()
	p := plan{programs: []program{fakePeer(t, "fake", "slow@load")}, rounds: 1, timing: patiently, scenarios: []Scenario{
		{Name: "short", Load: closed(1)}, {Name: "long", Load: closed(1), Measure: 20 * time.Millisecond},
	}}
	var r Report
	p.carryOut(context.Background(), &r, &progress{out: io.Discard}, func(Scenario) {})
	if len(r.Results) != 2 || r.Results[0].Note == "" || r.Results[1].Note != "" || r.Results[1].Calls == 0 {
		t.Errorf("got %+v", r.Results)
	}
}

func TestASlowPeerIsMeasuredForLonger(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		behaviour     string
		problem, note string
	}{
		{"slow@load", "", "measured for 16ms, since no call began and came back within 1ms"},
		{"stuck@load", "no call began and came back within 16.384s", ""},
	} {
		r, _ := fight(context.Background(), fakePeer(t, "fake", c.behaviour), Scenario{Load: closed(1)}, patiently)
		if r.Problem != c.problem || r.Note != c.note {
			t.Errorf("%s: problem %q, note %q", c.behaviour, r.Problem, r.Note)
		}
	}
}

func TestPlanEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	p := plan{
		programs:  []program{fakePeer(t, "quick", ""), fakePeer(t, "fake", "hangs@load")},
		scenarios: []Scenario{{Name: "a", Load: closed(1)}, {Name: "b", Load: closed(1)}},
		rounds:    2, timing: timing{patience: time.Hour, grace: time.Second / 2},
	}
	var r Report
	tables := 0
	line, out := io.Pipe()
	go func() { // the first run is done: the second one, which hangs, begins
		bufio.NewReader(line).ReadString('\n') //nolint:errcheck // an empty pipe shows below
		cancel()
		io.Copy(io.Discard, line) //nolint:errcheck // as above
	}()
	p.carryOut(ctx, &r, &progress{out: out}, func(Scenario) { tables++ })
	out.Close()
	if len(r.Results) != 1 || r.Results[0].Problem != "" || tables == 0 {
		t.Errorf("got %+v and %d tables", r.Results, tables)
	}
}
