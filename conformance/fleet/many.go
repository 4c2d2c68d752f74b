// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/registry"
)

const (
	// followEnv makes a test binary a client that follows the registry at this address: see Follow.
	followEnv = "YODEL_FLEET_FOLLOW"
	// instancesEnv is the number of instances for which the client waits.
	instancesEnv = "YODEL_FLEET_INSTANCES"
)

// Many says what a client costs whose service has 1,000 instances, when nothing changes and when
// 300 records a second do, and checks that its picks do not suffer. With -fleet.long there are
// 5,000 instances and 1,000 changes a second. The client is a process of its own: the test binary,
// whose TestMain calls Follow.
func Many(t *testing.T, r Registry) {
	t.Helper()
	instances, changes, lasts := 1000, 300, 2*time.Second
	if *long {
		instances, changes, lasts = 5000, 1000, 5*time.Second
	}
	c := r.Open(t, r.Server.Addr, registry.Options{})
	announce := func(i, weight int) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		in := discovery.Instance{Addr: fmt.Sprintf("127.1.%d.%d:8972", i>>8, i&255), Weight: weight, Zone: "eu-1a", Version: "v1.2.3"}
		return c.Announce(ctx, service, in, time.Hour)
	}
	jobs, workers, broken := make(chan [2]int), sync.WaitGroup{}, atomic.Pointer[error]{}
	for range 64 {
		workers.Go(func() {
			for job := range jobs {
				if err := announce(job[0], job[1]); err != nil {
					broken.Store(&err)
				}
			}
		})
	}
	for i := range instances {
		jobs <- [2]int{i, 1}
	}
	f := follower(t, r.Server.Addr, instances)
	idle := f.ask(t, "measure")
	f.tell(t, "begin")
	made, began := 0, time.Now()
	for tick := time.NewTicker(10 * time.Millisecond); time.Since(began) < lasts; <-tick.C {
		for due := int(time.Since(began).Seconds() * float64(changes)); made < due; made++ {
			jobs <- [2]int{made * 7919 % instances, 2 + made}
		}
	}
	took := time.Since(began)
	busy := f.ask(t, "end")
	close(jobs)
	workers.Wait()
	if err := broken.Load(); err != nil {
		t.Errorf("Announce: %v", *err)
	}
	t.Logf("%d instances; without changes: %s", instances, idle)
	t.Logf("%.0f changes a second: %s", float64(made)/took.Seconds(), busy)
	if idle.median*3 < busy.median {
		t.Errorf("a pick takes %v with changes and %v without", busy.median, idle.median)
	}
}

// A child is a client in a process of its own.
type child struct {
	process *os.Process
	in      io.Writer
	out     *bufio.Scanner
}

func follower(t *testing.T, addr string, instances int) child {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := await.Command(t, binary)
	cmd.Env = append(os.Environ(), followEnv+"="+addr, instancesEnv+"="+strconv.Itoa(instances))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		var exit error
		if err := await.Within(await.Patience, "the end of the client", func() { exit = cmd.Wait() }, cmd.Process); err != nil {
			t.Error(err)
		} else if exit != nil {
			t.Errorf("the client: %v", exit)
		}
	})
	return child{cmd.Process, in, bufio.NewScanner(out)}
}

func (f child) tell(t *testing.T, what string) {
	t.Helper()
	if _, err := fmt.Fprintln(f.in, what); err != nil {
		t.Fatal(err)
	}
}

func (f child) ask(t *testing.T, what string) figures {
	t.Helper()
	f.tell(t, what)
	var got figures
	line, err := await.Line(f.out, "the answer of the client to "+what, f.process)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Sscan(line, &got.cpu, &got.heap, &got.total, &got.updates, &got.median, &got.slow)
	if err != nil {
		t.Fatalf("the client says %q: %v", line, err)
	}
	return got
}

// Figures are what a client costs.
type figures struct {
	cpu          float64 // share of a processor
	heap, total  uint64  // bytes in use, bytes from the system
	updates      float64 // of its set, a second
	median, slow time.Duration
}

func (f figures) String() string {
	return fmt.Sprintf("%.1f %% of a processor, %d MB in use of %d MB, %.1f updates a second, a pick %v, of 100 the slowest %v",
		100*f.cpu, f.heap>>20, f.total>>20, f.updates, f.median, f.slow)
}

// Follow makes the process a client, if Many has started it as one, and does not return then. It is
// called by TestMain.
func Follow(open func(addr string) Client) {
	addr := os.Getenv(followEnv)
	if addr == "" {
		return
	}
	instances, err := strconv.Atoi(os.Getenv(instancesEnv))
	if err != nil {
		panic(err)
	}
	m := &meter{known: make(chan struct{}), instances: instances}
	yodel.NewClient(open(addr).Service(service), &yodel.ClientOptions{Logger: quiet, Balancer: m.balance})
	<-m.known
	stop := func() {}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch strings.TrimSpace(lines.Text()) {
		case "measure":
			m.begin()()
		case "begin":
			stop = m.begin()
		case "end":
			stop()
		}
	}
	os.Exit(0)
}

// A meter measures its process.
type meter struct {
	known     chan struct{} // closed when all instances are
	instances int
	once      sync.Once
	picker    atomic.Pointer[yodel.Picker]
	updates   atomic.Int64
}

func (m *meter) balance(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
	p := yodel.RoundRobin(endpoints, last)
	m.picker.Store(&p)
	m.updates.Add(1)
	if len(endpoints) == m.instances {
		m.once.Do(func() { close(m.known) })
	}
	return p
}

// begin begins to measure. The result ends it, after two seconds at least, and prints the figures.
func (m *meter) begin() (end func()) {
	runtime.GC()
	began, cpu, updates := time.Now(), processorTime(), m.updates.Load()
	stop, samples := make(chan struct{}), make(chan []time.Duration)
	go func() { samples <- m.pick(stop) }()
	return func() {
		<-time.After(time.Until(began.Add(2 * time.Second)))
		close(stop)
		took := <-samples
		slices.Sort(took)
		passed := time.Since(began).Seconds()
		used := (processorTime() - cpu).Seconds() / passed
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		_, _ = fmt.Fprintln(os.Stdout, used, memory.HeapAlloc, memory.Sys, float64(m.updates.Load()-updates)/passed,
			int64(took[len(took)/2]), int64(took[len(took)*99/100]))
	}
}

// pick picks a hundred times each millisecond until stop is closed, and returns how long one pick
// took each time.
func (m *meter) pick(stop <-chan struct{}) (took []time.Duration) {
	const atOnce = 100
	call := &yodel.Call{Method: string(double)}
	for tick := time.NewTicker(time.Millisecond); ; {
		select {
		case <-tick.C:
		case <-stop:
			return took
		}
		began := time.Now()
		for range atOnce {
			(*m.picker.Load()).Pick(call)
		}
		took = append(took, time.Since(began)/atOnce)
	}
}
