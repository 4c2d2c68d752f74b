// SPDX-License-Identifier: Apache-2.0

package torture_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// serverEnv makes the test binary the server, which serves until its standard input ends.
const serverEnv = "YODEL_TORTURE_SERVER"

func TestMain(m *testing.M) {
	switch os.Getenv(serverEnv) {
	case "":
	case bouncer:
		bounceBack()
		return
	case blocker:
		serveBlocking()
		return
	default:
		serve()
		return
	}
	if addr := os.Getenv(clientEnv); addr != "" {
		pressOn(addr)
		return
	}
	yodeltest.VerifyNoLeaks(m)
}

// goroutinesOfAnIdleServer is more than a server of this program has when it does nothing.
const goroutinesOfAnIdleServer = 100

// A Job is a call with an id of its own.
type Job struct{ ID int }

// A Done is the answer to a Job.
type Done struct{ ID int }

const (
	once  yodel.Method[Job, Done] = "Torture.Once"  // may be executed once
	twice yodel.Method[Job, Done] = "Torture.Twice" // is idempotent
	quick yodel.Method[Job, Done] = "Torture.Quick" // runs on the goroutine that reads
	tidy  yodel.Method[Job, Done] = "Torture.Tidy"  // waits until connections are parked, and returns memory that is not in use to the system
)

// serve prints its address and then a line for each execution, before it does anything else. What a
// killed process has written to a pipe is still read.
func serve() {
	l, err := listen(cmp.Or(os.Getenv(addrEnv), "127.0.0.1:0"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Middleware: []yodel.Middleware{refuseSteps}, Limits: yodel.Limits{KeepAlive: longKeepAlive, Handshake: longKeepAlive}})
	serveStreams(s)
	work := func(ctx context.Context, job *Job) (*Done, error) {
		_, _ = os.Stdout.WriteString(strconv.Itoa(job.ID) + "\n") // the parent may be gone
		select {
		case <-time.After(time.Duration(job.ID%50) * time.Millisecond):
		case <-ctx.Done():
		}
		return &Done{job.ID}, nil
	}
	once.Handle(s, work)
	twice.Handle(s, work)
	s.MarkIdempotent(string(twice))
	quick.Handle(s, func(_ context.Context, job *Job) (*Done, error) { return &Done{job.ID}, nil })
	s.MarkInline(string(quick))
	tidy.Handle(s, func(ctx context.Context, _ *Job) (*Done, error) {
		for runtime.NumGoroutine() > goroutinesOfAnIdleServer { // the parker takes connections in turns
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%d goroutines: idle connections have kept theirs", runtime.NumGoroutine())
			case <-time.After(10 * time.Millisecond):
			}
		}
		runtime.GC() // what was in a sync.Pool survives the first collection
		debug.FreeOSMemory()
		return new(Done), nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	serveWork(ctx, s)
	serveSteps(s)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	if err := s.Serve(ctx, l); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// listen takes an address as soon as it is free: somebody's outgoing connection may have the port
// just now.
func listen(addr string) (net.Listener, error) {
	const patience = 5 * time.Second
	for began := time.Now(); ; <-time.After(time.Millisecond) {
		if l, err := net.Listen("tcp", addr); err == nil || time.Since(began) > patience {
			return l, err
		}
	}
}

// A child is a server in a process of its own.
type child struct {
	cmd       *exec.Cmd
	addr      string // known when it listens
	stdin     io.Closer
	listening chan struct{} // closed when it listens, or has ended before
	ended     chan struct{} // closed when all its output has been read

	mu       sync.Mutex
	executed map[int]int    // by id
	steps    map[Step][]run // see serveSteps
}

func start(t *testing.T, env ...string) *child {
	t.Helper()
	c := launch(t, env...)
	c.listens(t)
	return c
}

// listens returns when the server does.
func (c *child) listens(t *testing.T) {
	t.Helper()
	if err := await.Within(await.Patience, "the server's address", func() { <-c.listening }, c.cmd.Process); err != nil {
		t.Fatal(err)
	}
	if c.addr == "" {
		t.Fatal("the server printed no address")
	}
}

// launch is start without the wait.
func launch(t *testing.T, env ...string) *child {
	t.Helper()
	cmd := await.Command(t, os.Args[0])
	cmd.Env = append(append(os.Environ(), serverEnv+"=1"), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, stdin: stdin, listening: make(chan struct{}), ended: make(chan struct{}), executed: make(map[int]int), steps: make(map[Step][]run)}
	go func() {
		defer close(c.ended)
		lines := bufio.NewScanner(stdout)
		lines.Scan()
		c.addr = lines.Text()
		close(c.listening)
		for lines.Scan() {
			if id, err := strconv.Atoi(lines.Text()); err == nil {
				c.mu.Lock()
				c.executed[id]++
				c.mu.Unlock()
				continue
			}
			c.note(lines.Text())
		}
	}()
	t.Cleanup(c.kill)
	return c
}

// kill ends the process the hard way, and returns when all that it wrote has been read.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.ended
	_ = c.cmd.Wait() // the error is that it was killed
}

// TestKilledServer kills a server with a thousand calls in flight, fifty times, and twenty times
// with the race detector. In nine rounds of ten, every caller has the outcome within 100 ms of the
// kill, or 500 ms with the race detector: a reply from the other server, if the call was certainly
// not executed or may be executed twice, or an error that says that it may have been executed. No
// call that may be executed once is executed twice, in any round.
func TestKilledServer(t *testing.T) {
	t.Attr("rerun", "never")
	const callers = 1000
	rounds := 50
	if raceEnabled {
		rounds = 20
	}
	var interrupted, resent, slowest = 0, 0, []time.Duration{}
	survivor := start(t)
	for round := range rounds {
		victim := start(t)
		c := yodel.NewClient(discovery.Static(victim.addr, survivor.addr), &yodel.ClientOptions{
			Middleware: []yodel.Middleware{again},
		})
		// The client learns from the servers that the method is idempotent.
		if _, err := twice.Call(t.Context(), c, &Job{-1 - round}); err != nil {
			t.Fatal(err)
		}
		r := storm(t, c, round*callers, callers, victim)
		c.Close()
		for id := round * callers; id < (round+1)*callers; id++ {
			survivor.mu.Lock()
			n := survivor.executed[id] + victim.executed[id]
			survivor.mu.Unlock()
			if n > 1 && id%2 == 0 {
				t.Errorf("round %d: call %d was executed %d times and may be executed once", round, id, n)
			}
			if n > 1 {
				resent++
			}
		}
		interrupted += r.interrupted
		slowest = append(slowest, r.late)
	}
	slices.Sort(slowest)
	t.Logf("%d rounds of %d calls: %d interrupted, %d executed again because they may be; the last error came %v after the kill at the worst, %v in the median",
		rounds, callers, interrupted, resent, slowest[rounds-1], slowest[rounds/2])
	if interrupted == 0 {
		t.Error("no call was interrupted: the test did not test anything")
	}
	bound := 100 * time.Millisecond
	if raceEnabled { // which makes a thousand errors at once slow
		bound *= 5
	}
	// A tenth of the rounds may be lost to a machine that does something else meanwhile.
	if late := slowest[rounds*9/10-1]; late > bound {
		t.Errorf("callers waited %v for their error", late)
	}
}

// again tries a call that may be repeated once more.
func again(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		if err != nil && call.Attempts().NoRepeat(err) == "" {
			call.Attempts().Avoid(call.Endpoint)
			err = next(ctx, call)
		}
		return err
	}
}

type outcome struct {
	interrupted int
	late        time.Duration // how long after the kill the last error came
}

// storm makes calls and kills the victim while they are open.
func storm(t *testing.T, c *yodel.Client, first, n int, victim *child) outcome {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var killed time.Time
	var out outcome
	begun := make(chan struct{}, n)
	for id := first; id < first+n; id++ {
		wg.Go(func() {
			method := once
			if id%2 == 1 {
				method = twice
			}
			begun <- struct{}{}
			done, err := method.Call(t.Context(), c, &Job{id})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && done.ID != id:
				t.Errorf("call %d got the reply of call %d", id, done.ID)
			case err == nil:
			case method == once && errors.Is(err, yodel.Unavailable) && !yodel.NotProcessed(err) && strings.Contains(err.Error(), victim.addr):
				out.interrupted++
				out.late = max(out.late, time.Since(killed))
			default:
				t.Errorf("call %d of %s: %v", id, method, err)
			}
		})
	}
	for range n * (1 + first/n%4) / 5 { // at another moment each round
		<-begun
	}
	mu.Lock()
	killed = time.Now()
	mu.Unlock()
	victim.kill()
	wg.Wait()
	return out
}

// TestIdleConnections measures what connections cost that do nothing, without garbage. With the
// usual share of garbage the same program takes 7.2 to 8.2 KiB for each, by when the collector
// runs.
func TestIdleConnections(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	const conns = 10_000
	server := start(t)
	c := yodel.Dial(server.addr)
	defer c.Close()
	uses := func() int {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := tidy.Call(ctx, c, &Job{0}); err != nil {
			t.Fatal(err)
		}
		return resident(t, server.cmd.Process.Pid)
	}
	before := uses()
	open := make([]net.Conn, 0, conns)
	defer func() {
		for _, conn := range open {
			_ = conn.Close() // it was idle
		}
	}()
	var d net.Dialer
	for range conns {
		conn, err := d.DialContext(t.Context(), "tcp", server.addr)
		if err != nil {
			t.Fatalf("after %d connections: %v", len(open), err)
		}
		open = append(open, conn)
	}
	accepted, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		stats, err := inspect.Stats.Call(accepted, c, &inspect.Empty{})
		if err != nil {
			t.Fatalf("before the server has accepted all connections: %v", err)
		}
		if stats.Conns == conns+1 {
			break
		}
	}
	after := uses()
	each := (after - before) / conns
	t.Logf("%d idle connections: %d KiB, %d bytes each", conns, (after-before)>>10, each)
	began := time.Now()
	if _, err := once.Call(t.Context(), c, &Job{50}); err != nil {
		t.Errorf("a call beside them: %v", err)
	}
	t.Logf("a call beside them took %v", time.Since(began))
	if limit := 5 << 10; each > limit && !raceEnabled { // 3.4 to 4.1 KiB
		t.Errorf("an idle connection costs %d bytes, more than %d", each, limit)
	}
}

// resident returns the resident memory of a process, in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
