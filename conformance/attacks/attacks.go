// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

var reportFile = flag.String("attacks.report", "", "append what each attack did to this file, as a row of a table")

// MiB is a mebibyte.
const MiB = 1 << 20

// An Attack is what one attacker does to a victim, and what it may cost.
type Attack struct {
	Name string
	// Victim names the server: a key of what was given to PlayRole.
	Victim string
	// Prepare does what is ordinary load and no attack, for example opening the calls that then
	// hold places. The latency of the good client is judged afterwards. Nil does nothing.
	Prepare func(a *Attacker)
	// Do carries out the attack. Nil does nothing but wait.
	Do func(a *Attacker)
	// Check looks at the victim while the attacker's connections are open. Nil checks nothing.
	Check func(a *Attacker)

	// Held bounds the growth of the live heap while the connections are open. Default 64 MiB.
	Held int64
	// Peak bounds the growth of the resident memory. Default three times Held.
	Peak int64
	// CPU bounds the processor time that the victim spends until the attack is over. The zero value
	// does not bound it.
	CPU time.Duration
	// StillRuns is how many calls may go on when the attacker has left. Default none.
	StillRuns int64
	// Floor is the bound on the good client's latency if three times that of the control window is
	// less. Default 20 ms.
	Floor time.Duration
	// NoLatency says why the good client's latency is not judged. Empty: it is.
	NoLatency string
}

// An Attacker is the test process during an attack.
type Attacker struct {
	testing.TB

	Addr   string
	Report []string // what the checks found, for people

	victim  *Process
	conns   []*Conn
	onClose []func()
}

// OnClose calls f when the attack is over, after the attacker's connections were closed.
func (a *Attacker) OnClose(f func()) { a.onClose = append(a.onClose, f) }

// Bounds on the good client's latency.
const (
	latencyFactor = 3
	latencyFloor  = 20 * time.Millisecond // what two busy processors cost any call now and then
	controlLasts  = 250 * time.Millisecond
	attackLasts   = time.Second
	perCall       = 16 << 10 // bytes of a call that runs, with its goroutine
	idleWorkers   = 300      // goroutines that a server keeps for the next calls
	attempts      = 9        // a disturbance passes, and an attack that succeeds does so each time
	judgedSlow    = 6        // slow attempts in which less than stolenShare was stolen
	stolenShare   = 0.02     // of the processors' time: 40 ms in a second of two
)

// Run carries out the attacks one after the other, as subtests. An attempt in which the good client
// was slow is judged only if a hypervisor did not hold the processors meanwhile: otherwise the
// latency says nothing of the victim. A subtest fails after judgedSlow such attempts. It is skipped
// if the client was slow in all attempts, and fewer of them are judged.
func Run(t *testing.T, all []Attack) {
	skipUnlessMeasurable(t)
	good := startNeighbour(t)
	for _, attack := range all {
		t.Run(attack.Name, func(t *testing.T) {
			judged := 0
			var slow string
			for attempt := 1; attempt <= attempts && judged < judgedSlow; attempt++ {
				var stolen float64
				if slow, stolen = attack.once(t, good, attempt); slow == "" {
					return
				}
				if stolen < stolenShare {
					judged++
				}
				t.Logf("attempt %d, with %.0f %% of the processors' time stolen: %s", attempt, 100*stolen, slow)
			}
			if judged < judgedSlow {
				t.Skipf("a hypervisor held the processors in %d of %d slow attempts: %s", attempts-judged, attempts, slow)
			}
			t.Error(slow)
		})
	}
}

func skipUnlessMeasurable(t testing.TB) {
	t.Helper()
	if !measurable {
		t.Skip("memory is limited and measured on Linux only")
	}
	if raceEnabled {
		t.Skip("the race detector multiplies memory and time: the attacks run without it")
	}
	raiseFileLimit()
}

// A result is what an attack cost.
type result struct {
	held, peak int64
	cpu        time.Duration
	calm       Window  // the good client's calls before the attack
	under      Window  // and during it
	beside     Window  // its calls to another server meanwhile, which nobody attacks
	stolen     float64 // the share of the processors' time that a hypervisor held meanwhile
}

// Start starts a victim, and returns its attacker. The victim is killed when the test ends.
func Start(t testing.TB, victim string) *Attacker {
	t.Helper()
	skipUnlessMeasurable(t)
	a := &Attacker{TB: t, victim: StartRole(t, victimRole, victim)}
	var err error
	if a.Addr, err = a.victim.Line(); err != nil {
		t.Fatal(err)
	}
	return a
}

// once carries the attack out against a new victim. It returns what is wrong with the latency of
// the good client, and the share of the processors' time that was stolen; anything else that is
// wrong fails the test.
func (attack *Attack) once(t *testing.T, good *goodClient, attempt int) (slow string, stolen float64) {
	a := Start(t, attack.Victim)
	defer a.closeAll()
	good.call(a, a.Addr)
	r, before := a.measure(attack, good)
	good.stop(a)
	attack.report(t, a, r, attempt)
	attack.judge(t, r)
	a.AwaitCalm(before, attack.StillRuns)
	if attack.NoLatency != "" {
		return "", 0
	}
	return r.slow(cmp.Or(attack.Floor, latencyFloor)), r.stolen
}

// measure carries out the attack and measures it.
func (a *Attacker) measure(attack *Attack, good *goodClient) (r result, before Stats) {
	a.Helper()
	good.windows(a)
	<-time.After(controlLasts)
	r.calm, _ = good.windows(a)
	a.ask(a.victim, "stats", &before)
	pid := a.victim.cmd.Process.Pid
	start, _, err := residentMemory(pid)
	if err == nil {
		err = resetPeak(pid)
	}
	if err != nil {
		a.Fatal(err)
	}
	if attack.Prepare != nil {
		attack.Prepare(a)
	}
	good.windows(a)
	began, held := time.Now(), stolenTime()
	if attack.Do != nil {
		attack.Do(a)
	}
	<-time.After(attackLasts - time.Since(began))
	r.under, r.beside = good.windows(a)
	if r.under.Errors == 0 { // a call that failed is judged whatever else runs
		r.stolen = float64(stolenTime()-held) / float64(time.Since(began)) / float64(runtime.NumCPU())
	}
	var after Stats
	a.ask(a.victim, "count", &after)
	r.cpu = after.CPU - before.CPU
	if attack.Check != nil {
		attack.Check(a)
	}
	a.ask(a.victim, "stats", &after)
	_, peak, err := residentMemory(pid)
	if err != nil {
		a.Fatal(err)
	}
	r.held, r.peak = after.Heap-before.Heap, peak-start
	return r, before
}

// ask fails the test when the process has ended.
func (a *Attacker) ask(p *Process, command string, reply any) {
	a.Helper()
	if err := p.ask(command, reply); err != nil {
		if *reportFile != "" {
			a.appendReport(fmt.Sprintf("| %s | the victim ended: %s |", a.Name(), firstLine(err.Error())))
		}
		a.Fatalf("%s: %v", command, err)
	}
}

// judge fails the test where the cost exceeds the bounds.
func (attack *Attack) judge(t *testing.T, r result) {
	held := cmp.Or(attack.Held, 64*MiB)
	if r.held > held {
		t.Errorf("the victim holds %s for the attacker, want at most %s", mib(r.held), mib(held))
	}
	if peak := cmp.Or(attack.Peak, 3*held); r.peak > peak {
		t.Errorf("the resident memory of the victim grew by %s, want at most %s", mib(r.peak), mib(peak))
	}
	if attack.CPU > 0 && r.cpu > attack.CPU {
		t.Errorf("the attack cost the victim %v of processor time, want at most %v", r.cpu, attack.CPU)
	}
}

// slow says what is wrong with the latency of the good client, or nothing.
func (r result) slow(floor time.Duration) string {
	bound := max(latencyFactor*max(r.calm.P99, r.beside.P99), floor)
	switch {
	case r.under.Errors > 0:
		return fmt.Sprintf("%d of %d calls of the good client failed: %s", r.under.Errors, r.under.Calls, r.under.Error)
	case r.under.P99 > bound:
		return fmt.Sprintf("p99 of the good client is %v, before the attack %v, and %v with a server that is not attacked: want at most %v",
			r.under.P99, r.calm.P99, r.beside.P99, bound)
	}
	return ""
}

// AwaitCalm closes the attacker's connections and waits until the victim has freed what it held for
// them.
func (a *Attacker) AwaitCalm(before Stats, stillRuns int64) {
	a.Helper()
	a.closeAll()
	var now Stats
	for deadline := time.Now().Add(15 * time.Second); ; <-time.After(20 * time.Millisecond) {
		a.ask(a.victim, "stats", &now)
		if now.Heap-before.Heap < 16*MiB+stillRuns*perCall && now.Goroutines-before.Goroutines < idleWorkers+int(stillRuns) &&
			now.Running <= stillRuns {
			return
		}
		if time.Now().After(deadline) {
			a.Errorf("after the attacker has left, the victim has %s of heap and %d goroutines more than before, and %d calls running",
				mib(now.Heap-before.Heap), now.Goroutines-before.Goroutines, now.Running)
			return
		}
	}
}

func (attack *Attack) report(t *testing.T, a *Attacker, r result, attempt int) {
	row := fmt.Sprintf("| %s | %s | %s | %d ms | %s / %s | %s / %s | %s | %d of %d | %s |",
		strings.TrimPrefix(t.Name(), "TestAttacks/"), mib(r.held), mib(r.peak), r.cpu.Milliseconds(),
		short(r.calm.P50), short(r.calm.P99), short(r.under.P50), short(r.under.P99), short(r.beside.P99),
		r.under.Errors, r.under.Calls, strings.Join(a.Report, "; "))
	t.Logf("attempt %d: %s", attempt, row)
	if *reportFile != "" {
		a.appendReport(row)
	}
}

func (a *Attacker) appendReport(row string) {
	f, err := os.OpenFile(*reportFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		a.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, row); err != nil {
		a.Error(err)
	}
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/MiB) }

func short(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

func firstLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); strings.Contains(line, "fatal") || strings.Contains(line, "panic") || strings.Contains(line, "out of memory") {
			return line
		}
	}
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// Foundf adds to the report.
func (a *Attacker) Foundf(format string, args ...any) {
	a.Report = append(a.Report, fmt.Sprintf(format, args...))
}

// Dial opens a connection, which is closed when the attack is over. Nothing has been sent on it.
func (a *Attacker) Dial() *Conn {
	a.Helper()
	c, err := Dial(a.Addr)
	if err != nil {
		a.Fatal(err)
	}
	a.conns = append(a.conns, c)
	return c
}

// Connect opens a connection and appends the preface and settings.
func (a *Attacker) Connect() *Conn {
	a.Helper()
	c := a.Dial()
	c.Hello(&wire.Limits{})
	return c
}

func (a *Attacker) closeAll() {
	for _, c := range a.conns {
		_ = c.Close() // the victim may have closed it
	}
	a.conns = nil
	for _, f := range a.onClose {
		f()
	}
	a.onClose = nil
}

// Spread calls do n times in the course of a span, and flushes nothing.
func Spread(n int, over time.Duration, do func(i int)) {
	const steps = 50
	began := time.Now()
	for i := range n {
		if i%max(n/steps, 1) == 0 {
			<-time.After(over*time.Duration(i)/time.Duration(n) - time.Since(began))
		}
		do(i)
	}
}

// Stats returns what the victim says of itself, without a garbage collection.
func (a *Attacker) Stats() (s Stats) {
	a.Helper()
	a.ask(a.victim, "count", &s)
	return s
}

// Collected is Stats after a garbage collection.
func (a *Attacker) Collected() (s Stats) {
	a.Helper()
	a.ask(a.victim, "stats", &s)
	return s
}

// Until waits until the condition holds for the victim, and reports whether it did.
func (a *Attacker) Until(patience time.Duration, condition func(Stats) bool) bool {
	a.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(5 * time.Millisecond) {
		if condition(a.Stats()) {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}
