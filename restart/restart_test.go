// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart_test

import (
	"bufio"
	"context"
	stdtls "crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/transport/tls"
	"github.com/yodel-rpc/yodel/transport/unix"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	if os.Getenv(lookVariable) != "" {
		look()
		return
	}
	if name := os.Getenv(scriptVariable); name != "" {
		play(name)
		return
	}
	yodeltest.VerifyNoLeaks(m)
}

// A row is the processes of a test, one at a time but while they hand over.
type row struct {
	t      *testing.T
	script string // the file that says what the next process does
	first  *exec.Cmd
	killed bool // the first one

	lifeline io.Closer // what the processes have as their standard input

	mu      sync.Mutex
	said    []line
	changed chan struct{} // closed and replaced when more was said
	gone    chan struct{} // closed when all processes have ended
}

// A line is what a process said: its id, what it is about, and the rest.
type line struct {
	pid  int
	what string
	rest string
}

// newRow starts the first process of a row, which does what s says. Change may change how it is
// started.
func newRow(t *testing.T, s script, change ...func(*exec.Cmd)) *row {
	t.Helper()
	folder, err := os.MkdirTemp("", "yodel") //nolint:usetesting // a unix socket's path must be short
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	r := &row{t: t, script: filepath.Join(folder, "script"), changed: make(chan struct{}), gone: make(chan struct{})}
	r.next(s)
	out, in, err := os.Pipe()
	must(t, err)
	r.first = exec.Command(os.Args[0])
	// The race detector makes a process that exits sleep for a second.
	r.first.Env = append(os.Environ(), scriptVariable+"="+r.script, "GORACE=atexit_sleep_ms=0")
	r.first.Stdout, r.first.Stderr = in, os.Stderr
	stdin, lifeline, err := os.Pipe()
	must(t, err)
	r.lifeline, r.first.Stdin = lifeline, stdin
	for _, f := range change {
		f(r.first)
	}
	must(t, r.first.Start())
	_ = stdin.Close()
	_ = in.Close() // the processes have it, the last of which ends the reading
	go r.read(out)
	t.Cleanup(r.end)
	return r
}

// next says what the next process of the row does.
func (r *row) next(s script) {
	r.t.Helper()
	text, err := json.Marshal(s)
	must(r.t, err)
	must(r.t, os.WriteFile(r.script, text, 0o600))
}

func (r *row) read(out *os.File) {
	defer close(r.gone)
	defer out.Close()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		pid, rest, _ := strings.Cut(lines.Text(), " ")
		what, rest, _ := strings.Cut(rest, " ")
		id, err := strconv.Atoi(pid)
		if err != nil {
			id, what, rest = 0, "noise", lines.Text()
		}
		r.mu.Lock()
		r.said = append(r.said, line{id, what, rest})
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

// await returns the first line for which match is true, now or later.
func (r *row) await(why string, match func(line) bool) line {
	r.t.Helper()
	return r.awaitTimes(1, why, match)
}

// awaitTimes returns the nth line for which match is true, now or later.
func (r *row) awaitTimes(n int, why string, match func(line) bool) line {
	r.t.Helper()
	timeout := time.After(15 * time.Second)
	for {
		r.mu.Lock()
		var found []line
		for _, l := range r.said {
			if match(l) {
				found = append(found, l)
			}
		}
		changed := r.changed
		r.mu.Unlock()
		if len(found) >= n {
			return found[n-1]
		}
		select {
		case <-changed:
		case <-r.gone:
			r.t.Fatalf("all processes ended before: %s\n%s", why, r.transcript())
		case <-timeout:
			r.printStacks()
			r.t.Fatalf("waiting for: %s\n%s", why, r.transcript())
		}
	}
}

// says awaits that a process says something.
func (r *row) says(pid int, what, containing string) line {
	r.t.Helper()
	return r.await(fmt.Sprintf("%d says %s %s", pid, what, containing), func(l line) bool {
		return l.pid == pid && l.what == what && strings.Contains(l.rest, containing)
	})
}

// serving awaits that a process serves which is none of the former ones, and returns its id and
// where it listens.
func (r *row) serving(former ...int) (pid int, addrs []string) {
	r.t.Helper()
	up := r.await("another process serves", func(l line) bool { return l.what == "up" && !slices.Contains(former, l.pid) })
	return up.pid, strings.Fields(up.rest)
}

// transcript is all that was said but for the calls.
func (r *row) transcript() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, l := range r.said {
		if l.what != "did" {
			fmt.Fprintln(&b, l.pid, l.what, l.rest)
		}
	}
	return b.String()
}

// withdrew returns the addresses that a process has withdrawn from registries.
func (r *row) withdrew(pid int) (addrs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.said {
		if l.pid == pid && l.what == "withdrew" {
			addrs = append(addrs, l.rest)
		}
	}
	return addrs
}

// ended awaits that no process is left, and checks how the first one ended.
func (r *row) ended() {
	r.t.Helper()
	select {
	case <-r.gone:
	case <-time.After(15 * time.Second):
		r.printStacks()
		r.t.Fatalf("a process is left behind\n%s", r.transcript())
	}
	if err := r.first.Wait(); err != nil && !r.killed {
		r.t.Errorf("the first process ended with %v", err)
	}
}

// end ends whatever still runs, when the test went wrong or has seen enough.
func (r *row) end() {
	_ = r.lifeline.Close()
	select {
	case <-r.gone:
	case <-time.After(await.Patience):
		r.printStacks()
		r.t.Errorf("a process does not end\n%s", r.transcript())
	}
	_ = r.first.Wait() // unless it was waited for before
}

// printStacks makes the processes of the row print their stacks and end, and waits until they have.
func (r *row) printStacks() {
	r.mu.Lock()
	pids := map[int]bool{r.first.Process.Pid: r.first.ProcessState == nil}
	for _, l := range r.said {
		if l.pid > 0 && l.what == "down" {
			pids[l.pid] = false
		} else if _, known := pids[l.pid]; l.pid > 0 && !known {
			pids[l.pid] = true
		}
	}
	r.mu.Unlock()
	for pid, runs := range pids {
		if runs {
			_ = syscall.Kill(pid, syscall.SIGQUIT) // it may have ended
		}
	}
	select {
	case <-r.gone:
	case <-time.After(5 * time.Second):
	}
}

func tell(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	must(t, syscall.Kill(pid, sig))
}

// executed returns how often each call was executed.
func (r *row) executed() map[int64]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	times := map[int64]int{}
	for _, l := range r.said {
		if id, err := strconv.ParseInt(l.rest, 10, 64); l.what == "did" && err == nil {
			times[id]++
		}
	}
	return times
}

// A load is callers that expect each call to succeed, with retries off.
type load struct {
	t     *testing.T
	calls atomic.Int64    // begun
	done  [5]atomic.Int64 // by each caller
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu sync.Mutex
	by map[int]int // answers, by process
}

// startLoad starts callers. They share a client but for the first one, which makes a new one for
// each call.
func startLoad(t *testing.T, transport yodel.Transport, addrs ...string) *load {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{t: t, stop: stop, by: map[int]int{}}
	o := &yodel.ClientOptions{Transport: transport}
	shared := yodel.NewClient(discovery.Static(addrs...), o)
	for i := range l.done {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				c := shared
				if i == 0 {
					c = yodel.NewClient(discovery.Static(addrs...), o)
				}
				l.call(c) //nolint:contextcheck // see call
				if i == 0 {
					c.Close() //nolint:contextcheck // see call
				}
				l.done[i].Add(1)
			}
		})
	}
	t.Cleanup(func() {
		l.end()
		shared.Close()
	})
	return l
}

// call makes one call, which goes on when the load ends.
func (l *load) call(c *yodel.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	id := l.calls.Add(1)
	done, err := work.Call(ctx, c, &Job{ID: id})
	if err != nil || done.ID != id {
		l.t.Errorf("call %d: %v %+v", id, done, err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by[done.By]++
}

// goesOn awaits that every caller has made some more calls, so that no call sees two processes go.
func (l *load) goesOn() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range l.done {
		for seen := l.done[i].Load(); l.done[i].Load() < seen+5 && !l.t.Failed(); {
			<-tick.C
		}
	}
}

func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// check ends the load and compares what was called with what was executed.
func (l *load) check(r *row, processes int) {
	l.t.Helper()
	l.t.Attr("rerun", "never")
	l.end()
	executed := r.executed()
	for id := range l.calls.Load() {
		if n := executed[id+1]; n != 1 {
			l.t.Errorf("call %d was executed %d times", id+1, n)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%d calls, answered by %d processes", l.calls.Load(), len(l.by))
	if len(l.by) < processes {
		l.t.Errorf("got answers of %d processes, want %d", len(l.by), processes)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// handOver makes a process hand over, and returns the successor when the process has ended.
func (r *row) handOver(former []int) (pid int, addrs []string) {
	r.t.Helper()
	old := former[len(former)-1]
	tell(r.t, old, syscall.SIGHUP)
	pid, addrs = r.serving(former...)
	r.says(old, "down", "<nil>")
	return pid, addrs
}

// stops makes the last process of the row end.
func (r *row) stops(pid int) {
	r.t.Helper()
	tell(r.t, pid, syscall.SIGTERM)
	r.ended()
}

// TestHandOversUnderLoadLoseNoCall lets twenty-five processes follow each other.
func TestHandOversUnderLoadLoseNoCall(t *testing.T) {
	t.Attr("rerun", "never")
	const times = 25
	r := newRow(t, script{Addrs: []string{"127.0.0.1:0"}})
	pid, addrs := r.serving()
	l := startLoad(t, nil, addrs...)
	pids := []int{pid}
	for range times {
		l.goesOn()
		next, now := r.handOver(pids)
		if !slices.Equal(now, addrs) {
			t.Fatalf("the successor listens at %q, not at %q", now, addrs)
		}
		pids = append(pids, next)
	}
	l.goesOn()
	l.end()
	r.stops(pids[times])
	l.check(r, times+1)
}

// A new version that does not work changes nothing, and the log says why.
func TestASuccessorThatFailsChangesNothing(t *testing.T) {
	for _, test := range []struct {
		does    string
		timeout time.Duration
		why     string
	}{
		{"crash", 0, `reason="it ended before it was ready" state="exit status 3"`},
		{"hang", time.Second, `reason="it was not ready within 1s" state="signal: terminated"`},
		// it may not have come so far as to be stubborn
		{"hang stubbornly", time.Second, `reason="it was not ready within 1s"`},
	} {
		t.Run(test.does, func(t *testing.T) {
			works := script{Addrs: []string{"127.0.0.1:0"}, ReadyTimeout: test.timeout}
			r := newRow(t, works)
			pids := make([]int, 1)
			var addrs []string
			pids[0], addrs = r.serving()
			l := startLoad(t, nil, addrs...)
			l.goesOn()
			broken := works
			broken.Does = test.does
			r.next(broken)
			tell(t, pids[0], syscall.SIGHUP)
			r.says(pids[0], "log", test.why)
			l.goesOn()
			if test.timeout == 0 { // there is time to try one that was mended
				r.next(works)
				next, _ := r.handOver(pids)
				pids = append(pids, next)
				l.goesOn()
			}
			l.end()
			r.stops(pids[len(pids)-1])
			l.check(r, len(pids))
		})
	}
}

func TestASuccessorMayListenElsewhere(t *testing.T) {
	r := newRow(t, script{Addrs: []string{"127.0.0.1:0", "localhost:0"}})
	pid, before := r.serving()
	r.next(script{Addrs: []string{"localhost:0", "127.0.0.2:0"}})
	l := startLoad(t, nil, before[1])
	l.goesOn()
	next, after := r.handOver([]int{pid})
	if after[0] != before[1] || slices.Contains(before, after[1]) {
		t.Errorf("got addresses %q after %q, want the second one of them and a new one", after, before)
	}
	if c, err := yodel.TCP.Dial(t.Context(), before[0]); err == nil {
		c.Close()
		t.Errorf("somebody listens at %s still, which nobody wants", before[0])
	}
	// What the successor has announced at its address stays in registries.
	if got := r.withdrew(pid); !slices.Equal(got, before[:1]) {
		t.Errorf("the first process has withdrawn %q, want %q, which it alone served", got, before[:1])
	}
	elsewhere := startLoad(t, nil, after[1])
	elsewhere.goesOn()
	elsewhere.end()
	l.goesOn()
	l.end()
	r.stops(next)
	if got := r.withdrew(next); len(got) != 2 {
		t.Errorf("the last process has withdrawn %q, want both its addresses", got)
	}
}

func TestUnixSocketsAreHandedOver(t *testing.T) {
	folder, err := os.MkdirTemp("", "yodel") //nolint:usetesting // a unix socket's path must be short
	must(t, err)
	defer os.RemoveAll(folder)
	stays, goes := filepath.Join(folder, "stays"), filepath.Join(folder, "goes")
	r := newRow(t, script{Addrs: []string{stays, goes}})
	pid, _ := r.serving()
	l := startLoad(t, unix.Transport{}, stays)
	pids := []int{pid}
	r.next(script{Addrs: []string{stays}})
	for range 3 {
		l.goesOn()
		next, _ := r.handOver(pids)
		pids = append(pids, next)
		if _, err := os.Lstat(stays); err != nil {
			t.Fatalf("the socket that was handed over: %v", err)
		}
		if _, err := os.Lstat(goes); err == nil {
			t.Error("a socket that nobody wanted is there still")
		}
	}
	l.goesOn()
	l.end()
	r.stops(pids[3])
	l.check(r, 4)
	if _, err := os.Lstat(stays); err == nil {
		t.Error("the last process left its socket behind")
	}
}

// A process that is told to end while it hands over takes with it the successor that is not ready.
func TestEndingWhileHandingOverLeavesNoProcessBehind(t *testing.T) {
	for _, does := range []string{"hang", "hang stubbornly"} {
		t.Run(does, func(t *testing.T) {
			works := script{Addrs: []string{"127.0.0.1:0"}}
			r := newRow(t, works)
			pid, _ := r.serving()
			works.Does = does
			r.next(works)
			tell(t, pid, syscall.SIGHUP)
			r.await("the successor hangs", func(l line) bool { return l.what == "hangs" })
			r.stops(pid)
		})
	}
}

// Whenever it is told so, it is decided which of the two goes.
func TestEndingAtAnyMomentOfAHandOver(t *testing.T) {
	for _, moment := range []string{"program", "up"} { // what the successor says then
		t.Run(moment, func(t *testing.T) {
			r := newRow(t, script{Addrs: []string{"127.0.0.1:0"}})
			pid, _ := r.serving()
			tell(t, pid, syscall.SIGHUP)
			next := r.await("the successor has come so far", func(l line) bool { return l.pid != pid && l.what == moment }).pid
			tell(t, pid, syscall.SIGTERM)
			r.says(pid, "down", "<nil>")
			if strings.Contains(r.transcript(), "a successor has taken over") {
				r.stops(next)
			} else {
				r.ended()
			}
		})
	}
}

func TestTLSIsLaidOverWhatIsHandedOver(t *testing.T) {
	r := newRow(t, script{Addrs: []string{"127.0.0.1:0"}, TLS: true})
	pid, addrs := r.serving()
	_, pool := identity()
	l := startLoad(t, &tls.Transport{Client: &stdtls.Config{RootCAs: pool}}, addrs...)
	pids := []int{pid}
	for range 3 {
		l.goesOn()
		next, _ := r.handOver(pids)
		pids = append(pids, next)
	}
	l.goesOn()
	l.end()
	r.stops(pids[3])
	l.check(r, 4)
}

// A connection that nobody has accepted when a process dies is served by its successor, which did
// not know of it.
func TestASuccessorServesWhatItsPredecessorLeftWhenItWasKilled(t *testing.T) {
	works := script{Addrs: []string{"127.0.0.1:0"}}
	r := newRow(t, works)
	pid, addrs := r.serving()
	slow := works
	slow.Does = "wait"
	r.next(slow)
	tell(t, pid, syscall.SIGHUP)
	next := r.await("the successor waits", func(l line) bool { return l.what == "waits" }).pid
	r.killed = true
	tell(t, pid, syscall.SIGKILL)
	_ = r.first.Wait() // it was killed
	dialed := make(chan struct{})
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{Transport: &dialTells{dialed: dialed}})
	defer c.Close()
	outcome := make(chan error, 1)
	go func() {
		_, err := work.Call(t.Context(), c, &Job{ID: 1})
		outcome <- err
	}()
	<-dialed // to a socket that nobody accepts from
	tell(t, next, syscall.SIGUSR1)
	if err := <-outcome; err != nil {
		t.Errorf("a call between two processes: %+v", err)
	}
	r.stops(next)
}

// dialTells is TCP that tells when it has connected.
type dialTells struct {
	dialed chan struct{}
	once   sync.Once
}

func (d *dialTells) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := yodel.TCP.Dial(ctx, addr)
	d.once.Do(func() { close(d.dialed) })
	return c, err
}

func (*dialTells) Listen(addr string) (net.Listener, error) { return yodel.TCP.Listen(addr) }

// A signal that comes while a hand-over is under way asks for one more: there may be a still newer
// program.
func TestASecondSignalIsNotLost(t *testing.T) {
	t.Attr("rerun", "never")
	works := script{Addrs: []string{"127.0.0.1:0"}}
	slow := works
	slow.Does = "wait"
	t.Run("the first hand-over fails", func(t *testing.T) {
		r := newRow(t, works)
		first, _ := r.serving()
		r.next(slow)
		tell(t, first, syscall.SIGHUP)
		second := r.await("the successor waits", func(l line) bool { return l.what == "waits" }).pid
		r.next(works)
		tell(t, first, syscall.SIGHUP)
		tell(t, second, syscall.SIGKILL)
		third, _ := r.serving(first, second)
		r.says(first, "down", "<nil>")
		r.stops(third)
	})
	t.Run("the first hand-over succeeds", func(t *testing.T) {
		r := newRow(t, works)
		first, addrs := r.serving()
		c := yodel.NewClient(discovery.Static(addrs...), nil)
		defer c.Close()
		begun := make(chan error, 1)
		go func() {
			done, err := work.Call(t.Context(), c, &Job{ID: -1})
			if err == nil && done.By != first {
				err = fmt.Errorf("it was answered by %d", done.By)
			}
			begun <- err
		}()
		r.says(first, "did", "-1")
		r.next(slow)
		tell(t, first, syscall.SIGHUP)
		second := r.await("the successor waits", func(l line) bool { return l.what == "waits" }).pid
		r.next(works)
		tell(t, first, syscall.SIGHUP)
		tell(t, second, syscall.SIGUSR1)
		third, _ := r.serving(first, second)
		r.says(second, "down", "<nil>")
		tell(t, first, syscall.SIGUSR2) // two generations later
		if err := <-begun; err != nil {
			t.Errorf("a long call: %+v", err)
		}
		r.says(first, "down", "<nil>")
		r.stops(third)
	})
}

// What a process starts has none of the sockets, and does not take itself for a successor.
func TestOtherProcessesInheritNothing(t *testing.T) {
	s := script{Addrs: []string{"127.0.0.1:0"}, Does: "start another"}
	r := newRow(t, s)
	first, _ := r.serving()
	next, _ := r.handOver([]int{first})
	want := r.says(first, "looked", "").rest
	if got := r.says(next, "looked", "").rest; got != want || !strings.Contains(got, `YODEL_RESTART=\"\"`) {
		t.Errorf("what a successor started has inherited %s, want %s", got, want)
	}
	r.stops(next)
}

// A new version is often a symbolic link that leads elsewhere.
func TestTheProgramIsLookedForAnew(t *testing.T) {
	text, err := os.ReadFile(os.Args[0])
	must(t, err)
	folder, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	for _, version := range []string{"v1", "v2"} {
		must(t, os.Mkdir(filepath.Join(folder, version), 0o700))
		must(t, os.WriteFile(filepath.Join(folder, version, "app"), text, 0o700))
	}
	link := filepath.Join(folder, "current")
	must(t, os.Symlink("v1", link))
	r := newRow(t, script{Addrs: []string{"127.0.0.1:0"}}, func(c *exec.Cmd) {
		c.Path, c.Args, c.Dir = filepath.Join(link, "app"), []string{"current/app"}, folder
	})
	first, _ := r.serving()
	r.says(first, "program", filepath.Join("v1", "app"))
	must(t, os.Remove(link))
	must(t, os.Symlink("v2", link))
	next, _ := r.handOver([]int{first})
	r.says(next, "program", filepath.Join("v2", "app"))
	r.stops(next)
}

func TestSuccessorsThatFailLeaveNothingBehind(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	works := script{Addrs: []string{"127.0.0.1:0"}}
	r := newRow(t, works)
	pid, addrs := r.serving()
	broken := works
	broken.Does = "crash at once" // before it could put right what was wrong with its sockets
	r.next(broken)
	files := func() int {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		must(t, err)
		return len(open)
	}
	var before int
	for round := range 4 {
		tell(t, pid, syscall.SIGHUP)
		r.awaitTimes(round+1, "a successor failed", func(l line) bool { return strings.Contains(l.rest, "has not taken over") })
		if round == 0 { // what is there from the first one on stays
			before = files()
		}
	}
	if after := files(); after != before {
		t.Errorf("%d files are open, after the first failure it were %d", after, before)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err == nil && len(children) > 0 {
		t.Errorf("there are children still: %s", children)
	}
	// The process can still stop waiting for connections.
	c := yodel.NewClient(discovery.Static(addrs...), nil)
	if _, err := work.Call(t.Context(), c, &Job{ID: 1}); err != nil {
		t.Error(err)
	}
	c.Close()
	r.stops(pid)
}

// systemd takes the service for dead when its main process ends, unless it was told of another one.
func TestSystemdIsTold(t *testing.T) {
	folder, err := os.MkdirTemp("", "yodel") //nolint:usetesting // a unix socket's path must be short
	must(t, err)
	defer os.RemoveAll(folder)
	socket := filepath.Join(folder, "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, err)
	defer systemd.Close()
	told := func() string {
		t.Helper()
		text := make([]byte, 1000)
		_ = systemd.SetReadDeadline(time.Now().Add(15 * time.Second))
		n, err := systemd.Read(text)
		must(t, err)
		return string(text[:n])
	}
	r := newRow(t, script{Addrs: []string{"127.0.0.1:0"}}, func(c *exec.Cmd) { c.Env = append(c.Env, "NOTIFY_SOCKET="+socket) })
	first, _ := r.serving()
	if got := told(); got != "READY=1" {
		t.Errorf("at first systemd was told %q", got)
	}
	next, _ := r.handOver([]int{first})
	if got, want := told(), fmt.Sprintf("MAINPID=%d\nREADY=1", next); got != want {
		t.Errorf("then systemd was told %q, want %q", got, want)
	}
	r.stops(next)
}
