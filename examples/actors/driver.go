// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/examples/internal/process"
)

// executorsAtOnce is how many executors there are.
const executorsAtOnce = 3

// A worker is an executor, as the driver sees it.
type worker struct {
	*process.Process

	n        int // 1 is the first one
	addr     string
	executor actor.Ref // zero until the executor has registered
	shuffle  actor.Ref
	running  int
	lost     bool
}

// A task is a map or a reduce task.
type task struct {
	running bool
	done    bool
	runs    int
	on      *worker // that has the output of a map task
	result  *Ran    // of a reduce task
}

// Finished is what the driver sends to itself when a question is answered.
type Finished struct {
	IsMap  bool
	Task   int
	Worker int
	Ran    *Ran
	Failed bool
}

// A driver is an actor, and needs no locks: its methods are called one after the other.
type driver struct {
	job     job
	system  *actor.System
	workers []*worker
	maps    []task
	reduces []task
	killed  bool
	ended   chan error
}

func newDriver(j job, s *actor.System) *driver {
	return &driver{job: j, system: s, maps: make([]task, j.Maps), reduces: make([]task, j.Reduces), ended: make(chan error, 1)}
}

// run runs the job.
func (d *driver) run(ctx context.Context) error {
	if err := d.system.Listen("127.0.0.1:0"); err != nil {
		return err
	}
	ref, err := drivers.Start(d.system, "driver", d, nil)
	if err != nil {
		return err
	}
	select {
	case err = <-d.ended:
	case <-ctx.Done():
		err = fmt.Errorf("the job has not ended: %w", context.Cause(ctx))
	}
	d.system.Stop(ref)
	return err
}

// end ends the job. Only the first call has an effect.
func (d *driver) end(err error) {
	select {
	case d.ended <- err:
	default:
	}
}

// OnStart starts the executors.
func (d *driver) OnStart(context.Context) error {
	for range executorsAtOnce {
		if err := d.startWorker(); err != nil {
			return err
		}
	}
	return nil
}

// OnError ends the job.
func (d *driver) OnError(_ context.Context, err error) { d.end(err) }

func (d *driver) startWorker() error {
	p, err := process.Start(context.Background(), func(string) {}, "-driver", d.system.Addr())
	if err != nil {
		return err
	}
	w := &worker{Process: p, n: len(d.workers) + 1, addr: p.First}
	d.workers = append(d.workers, w)
	fmt.Printf("executor %d is process %d at %s\n", w.n, p.PID, w.addr)
	return nil
}

// region driver
// Register begins to use an executor.
func (d *driver) Register(ctx context.Context, m *Register) error {
	for _, w := range d.workers {
		if w.addr == m.Executor.Addr {
			w.executor, w.shuffle = m.Executor, m.Shuffle
		}
	}
	d.schedule(ctx)
	return nil
}

// OnDisconnected is called when the connection of an executor has ended.
func (d *driver) OnDisconnected(ctx context.Context, addr string) { d.lose(ctx, addr) }

// schedule gives tasks to the executors that have slots. Reduce tasks need the output of all map
// tasks.
func (d *driver) schedule(ctx context.Context) {
	next := func(all []task) int { return slices.IndexFunc(all, func(t task) bool { return !t.done && !t.running }) }
	for _, w := range d.workers {
		for !w.lost && !w.executor.IsZero() && w.running < slots {
			if i := next(d.maps); i >= 0 {
				d.ask(ctx, w, &d.maps[i], Finished{IsMap: true, Task: i}, &RunMap{i, d.job})
				continue
			}
			i := next(d.reduces)
			if i < 0 || slices.ContainsFunc(d.maps, func(t task) bool { return !t.done }) {
				break
			}
			outputs := make([]actor.Ref, len(d.maps))
			for i := range outputs {
				outputs[i] = d.maps[i].on.shuffle
			}
			d.ask(ctx, w, &d.reduces[i], Finished{Task: i}, &RunReduce{i, outputs})
		}
	}
}

// ask asks an executor to run a task. The driver goes on meanwhile, and gets the outcome as a
// message.
func (d *driver) ask(ctx context.Context, w *worker, t *task, f Finished, message any) {
	t.running = true
	t.runs++
	w.running++
	self := actor.Self(ctx)
	ctx = context.WithoutCancel(ctx) // the task goes on when this method has returned
	q := actor.Ask[Ran](ctx, d.system, w.executor, message)
	go func() {
		ran, err := q.Get()
		f.Worker, f.Ran, f.Failed = w.n, ran, err != nil
		if err := d.system.Send(ctx, self, &f); err != nil {
			d.end(err) // the driver has stopped
		}
	}()
}

// Finished takes the outcome of a task.
func (d *driver) Finished(ctx context.Context, m *Finished) error {
	w := d.workers[m.Worker-1]
	w.running--
	all := d.reduces
	if m.IsMap {
		all = d.maps
	}
	t := &all[m.Task]
	t.running = false
	switch {
	case m.Failed:
		d.lose(ctx, w.addr)
	case m.Ran.Lost != "":
		d.lose(ctx, m.Ran.Lost)
	case !m.IsMap:
		t.done, t.result = true, m.Ran
	case !w.lost: // otherwise the output is lost too
		t.done, t.on = true, w
	}
	if d.reducesDone() == 1 && !d.killed {
		d.kill()
	}
	if d.reducesDone() == len(d.reduces) {
		d.end(nil)
	}
	d.schedule(ctx)
	return nil
}

// lose ends an executor, starts another one in its place, and runs its map tasks again.
func (d *driver) lose(ctx context.Context, addr string) {
	for _, w := range d.workers {
		if w.addr != addr || w.lost {
			continue
		}
		w.lost = true
		w.Kill() // it may run still
		for i := range d.maps {
			if d.maps[i].on == w {
				d.maps[i].done, d.maps[i].on = false, nil
			}
		}
		if err := d.startWorker(); err != nil {
			d.end(err)
		}
		d.schedule(ctx)
		return
	}
}

// endregion driver

var drivers = actor.NewKind("Driver", actor.On((*driver).Register), actor.On((*driver).Finished))

// OnConnected and OnNetworkError make the driver a Watcher. OnDisconnected has all it needs.
func (d *driver) OnConnected(context.Context, string) {}

func (d *driver) OnNetworkError(context.Context, string, error) {}

func (d *driver) reducesDone() (n int) {
	for _, t := range d.reduces {
		if t.done {
			n++
		}
	}
	return n
}

// kill kills the second executor, as a crash would. The driver learns of it by the connection.
func (d *driver) kill() {
	d.killed = true
	w, outputs := d.workers[1], 0
	for _, t := range d.maps {
		if t.on == w {
			outputs++
		}
	}
	fmt.Printf("killed executor %d, which has the output of %d map tasks\n", w.n, outputs)
	w.Kill()
}

// endExecutors ends the processes.
func (d *driver) endExecutors() {
	for _, w := range d.workers {
		w.ShutDown()
	}
	for _, w := range d.workers {
		w.Wait()
	}
}

// report prints what was done, and returns how many map outputs are missing in the result, or are
// in it more than once.
func (d *driver) report(took time.Duration) (lost int) {
	runs := func(all []task) (n int) {
		for _, t := range all {
			n += t.runs
		}
		return n
	}
	fmt.Printf("\n%-9s %7s %7s\n", "tasks", "done", "started")
	fmt.Printf("%-9s %7d %7d\n", "map", len(d.maps), runs(d.maps))
	fmt.Printf("%-9s %7d %7d\n", "reduce", len(d.reduces), runs(d.reduces))
	words, counted := 0, 0
	for _, t := range d.reduces {
		for _, n := range t.result.Counts {
			words += n
		}
		seen := make([]int, len(d.maps))
		for _, i := range t.result.Maps {
			seen[i]++
		}
		for _, n := range seen {
			if counted += n; n != 1 {
				lost++
			}
		}
	}
	fmt.Printf("\nwords     %7d of %d, in %v\n", words, d.job.Maps*d.job.Words, took.Round(10*time.Millisecond))
	fmt.Printf("shuffled  %7d of %d outputs\n", counted, d.job.Maps*d.job.Reduces)
	return lost
}

// check compares the result with one that is computed here. It returns how many words differ.
func (d *driver) check() (wrong int) {
	want := make(map[string]int)
	for part := range d.job.Maps {
		for _, counts := range d.job.count(part) {
			for word, n := range counts {
				want[word] += n
			}
		}
	}
	for _, t := range d.reduces {
		for word, n := range t.result.Counts {
			if want[word] != n {
				wrong++
			}
			delete(want, word)
		}
	}
	wrong += len(want)
	fmt.Printf("checked   %7d words differ\n", wrong)
	return wrong
}
