// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/internal/process"
)

// errTooLong is the cause of the end of a check that does not come to its end.
var errTooLong = errors.New("the check has taken 40 s")

// A report is a line that the process of a client writes.
type report struct {
	Stage    string   `json:"stage"` // what it has finished
	Features features `json:"features"`
	Calls    int      `json:"calls"`   // those that succeeded in the stage
	Repeats  int      `json:"repeats"` // failed attempts, which the client repeated
	Doubts   int      `json:"doubts"`  // failed attempts that may have been executed
	Doubt    string   `json:"doubt"`   // the error of the last of them
	Err      string   `json:"err"`
}

// The stages of a check. In each, a client makes some calls.
const (
	stageReady = "ready" // includes the features
	stageDrain = "drain"
	stageKill  = "kill"
)

const (
	// bursts is how many bursts of calls a client makes after the server of a stage was started.
	bursts = 10
	// callsPerBurst is how many calls a client makes, one after the other.
	callsPerBurst = 10
	// pause is the time between bursts. In the protocols that cannot say that a server drains, the
	// server ends a connection on which no call was open for 200 ms.
	pause = 300 * time.Millisecond
)

// A features says what a client could do.
type features struct {
	Codes    string `json:"codes"`
	Metadata string `json:"metadata"`
	Deadline string `json:"deadline"`
	Feed     string `json:"feed"`
}

const (
	carried = "yes"
	refused = "refused" // with an error, before the call was sent
	absent  = "-"       // the protocol or the client has no way to ask for it
)

// callAsChild is what the process of a client does. It ends a stage when its parent says so.
func callAsChild(name, addr string) error {
	for _, w := range ways() {
		if w.title() != name {
			continue
		}
		orders := make(chan string, 1)
		ctx := process.UntilToldToEnd(func(line string) error {
			orders <- line
			return nil
		})
		return w.work(ctx, w.dial(addr), orders)
	}
	return fmt.Errorf("no protocol is called %q", name)
}

func (w *way) title() string { return w.name + " by " + w.by }

// work checks the features, and then calls until ctx ends. Each order is the name of a stage that
// the client ends after further calls.
func (w *way) work(ctx context.Context, c client, orders <-chan string) error {
	first := report{Stage: stageReady}
	var err error
	if first.Features, err = w.check(ctx, c); err != nil {
		return write(report{Stage: stageReady, Err: err.Error()})
	}
	if err := write(first); err != nil {
		return err
	}
	var now report // the calls since the last report
	left := 0      // bursts until the stage ends
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case now.Stage = <-orders:
			left = bursts + 1
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for range callsPerBurst {
			if err := now.one(ctx, c); err != nil {
				now.Err = err.Error()
				return write(now)
			}
		}
		if left--; left == 0 {
			if err := write(now); err != nil {
				return err
			}
			now = report{}
		}
	}
}

// one makes a call, and repeats it until it succeeds. The method is idempotent.
func (r *report) one(ctx context.Context, c client) error {
	const patience = 10 * time.Second
	began := time.Now()
	n := int64(r.Calls)
	for {
		limited, cancel := context.WithTimeout(ctx, patience)
		sum, err := c.call(limited, "Add", n, n+1)
		cancel()
		switch {
		case err == nil && sum != 2*n+1:
			return fmt.Errorf("%d + %d is not %d", n, n+1, sum)
		case err == nil:
			r.Calls++
			return nil
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the check has ended
		case time.Since(began) > patience:
			return err
		}
		r.Repeats++
		if inDoubt(err) {
			r.Doubts++
			r.Doubt = err.Error()
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// check returns what the client could do, or an error if that is not what its protocol can.
func (w *way) check(ctx context.Context, c client) (f features, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if sum, err := c.call(ctx, "Add", 20, 22); err != nil {
		return f, err
	} else if sum != 42 {
		return f, fmt.Errorf("20 + 22 is %d", sum)
	}
	_, err = c.call(ctx, "Divide", 1, 0)
	if err == nil || !strings.Contains(err.Error(), "division by zero") {
		return f, fmt.Errorf("the error of a division by zero is %w", orNone(err))
	}
	f.Codes = mark(errors.Is(err, yodel.InvalidArgument))
	f.Metadata, f.Deadline, f.Feed = absent, absent, absent
	if c.see != nil {
		if f.Metadata, f.Deadline, err = lookAt(ctx, c); err != nil {
			return f, err
		}
	}
	if c.count != nil {
		sum, err := c.count(ctx, 1, 10)
		switch {
		case errors.Is(err, yodel.Unimplemented):
			f.Feed = refused
		case err != nil:
			return f, err
		case sum != 55:
			return f, fmt.Errorf("the sum of a feed is %d", sum)
		default:
			f.Feed = carried
		}
	}
	got := [...]bool{f.Codes == carried, f.Metadata == carried, f.Deadline == carried, f.Feed == carried}
	if want := [...]bool{w.codes, w.metadata, w.deadline, w.feed}; got != want {
		return f, fmt.Errorf("codes, metadata, deadlines and feeds are %v, want %v", got, want)
	}
	return f, nil
}

// lookAt returns whether metadata and deadlines reach the method.
func lookAt(ctx context.Context, c client) (metadata, deadline string, err error) {
	seen, err := c.see(ctx, "")
	if err != nil {
		return "", "", err
	}
	deadline = mark(seen.Deadline)
	switch seen, err = c.see(ctx, "gopher"); {
	case errors.Is(err, yodel.Unimplemented):
		return refused, deadline, nil
	case err != nil:
		return "", "", err
	case seen.User != "gopher":
		return "", "", errors.New("the metadata of a call was dropped")
	}
	return carried, deadline, nil
}

// orNone returns an error for the text of another one that is missing.
func orNone(err error) error {
	if err == nil {
		return errors.New("missing")
	}
	return err
}

func mark(ok bool) string {
	if ok {
		return carried
	}
	return absent
}

// write writes a line for the parent.
func write(r report) error { return json.NewEncoder(os.Stdout).Encode(r) }

// A check is the parent's part.
type check struct {
	server  *process.Process
	addr    string
	clients []*checked
}

// A checked is a client with what it has reported.
type checked struct {
	way
	process *process.Process
	reports chan report
	stages  []report
}

// runCheck runs all stages, and prints the table.
func runCheck(ctx context.Context) error {
	c := &check{addr: "127.0.0.1:0"}
	defer c.end()
	began := time.Now()
	if err := c.run(ctx); err != nil {
		return err
	}
	return c.print(time.Since(began))
}

func (c *check) run(ctx context.Context) error {
	if err := c.startServer(ctx); err != nil {
		return err
	}
	for _, w := range ways() {
		one := &checked{way: w, reports: make(chan report, 8)}
		var err error
		one.process, err = process.Start(ctx, one.hear, "-role", w.title(), "-addr", c.addr)
		if err != nil {
			return fmt.Errorf("%s: %w", w.title(), err)
		}
		c.clients = append(c.clients, one)
		one.hear(one.process.First)
	}
	if err := c.await(ctx, stageReady); err != nil {
		return err
	}
	fmt.Printf("%d clients call process %d at %s\n", len(c.clients), c.server.PID, c.addr)
	for _, stage := range []string{stageDrain, stageKill} {
		old := c.server
		end := old.ShutDown
		if stage == stageKill {
			end = old.Kill
		}
		end()
		old.Wait()
		if err := old.Err; err != nil && stage == stageDrain {
			return fmt.Errorf("the drained server: %w", err)
		}
		if err := c.startServer(ctx); err != nil {
			return err
		}
		fmt.Printf("%s: process %d has replaced process %d\n", stage, c.server.PID, old.PID)
		for _, one := range c.clients {
			if _, err := fmt.Fprintln(one.process.Orders, stage); err != nil {
				return fmt.Errorf("%s: %w", one.title(), err)
			}
		}
		if err := c.await(ctx, stage); err != nil {
			return err
		}
	}
	return nil
}

// startServer starts a server at the address.
func (c *check) startServer(ctx context.Context) (err error) {
	if c.server, err = process.Start(ctx, func(string) {}, "-role", "server", "-addr", c.addr); err != nil {
		return err
	}
	c.addr = c.server.First
	return nil
}

// hear takes a line of a client.
func (one *checked) hear(line string) {
	var r report
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		r.Err = line
	}
	one.reports <- r
}

// await waits until all clients have finished a stage.
func (c *check) await(ctx context.Context, stage string) error {
	for _, one := range c.clients {
		r, err := one.next(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", one.title(), err)
		case r.Err != "":
			return fmt.Errorf("%s: %s", one.title(), r.Err)
		case r.Stage != stage:
			return fmt.Errorf("%s has finished the stage %q instead of %q", one.title(), r.Stage, stage)
		}
		one.stages = append(one.stages, r)
	}
	return nil
}

// next returns the next report of a client.
func (one *checked) next(ctx context.Context) (report, error) {
	select {
	case r := <-one.reports:
		return r, nil
	case <-ctx.Done():
		return report{}, context.Cause(ctx)
	case <-one.process.Gone():
	}
	select {
	case r := <-one.reports: // its last word
		return r, nil
	default:
		return report{}, fmt.Errorf("the process has ended, %v\n%s", one.process.Err, &one.process.Stderr) //nolint:errorlint // it may be nil
	}
}

// end ends all processes.
func (c *check) end() {
	for _, one := range c.clients {
		one.process.ShutDown()
	}
	if c.server != nil {
		c.server.ShutDown()
		c.server.Wait()
	}
	for _, one := range c.clients {
		one.process.Wait()
	}
}

// print prints the table, and returns an error if a drain left a client in doubt that could have
// known better.
func (c *check) print(took time.Duration) error {
	var wrong []string
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "\n\t\t\t\t\t\tdrain\t\t\tkill")
	_, _ = fmt.Fprintln(t, "protocol\tclient\tcodes\tmetadata\tdeadline\tfeed"+strings.Repeat("\tcalls\trepeated\tin doubt", 2))
	for _, one := range c.clients {
		f, drain, kill := one.stages[0].Features, one.stages[1], one.stages[2]
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", one.name, one.by, f.Codes, f.Metadata, f.Deadline, f.Feed,
			drain.Calls, drain.Repeats, drain.Doubts, kill.Calls, kill.Repeats, kill.Doubts)
		if one.drains && drain.Doubts > 0 {
			wrong = append(wrong, one.title()+": "+drain.Doubt)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if wrong != nil {
		return fmt.Errorf("a drain left calls in doubt:\n%s", strings.Join(wrong, "\n"))
	}
	fmt.Printf("\n%d clients, all calls succeeded, %v\n", len(c.clients), took.Round(time.Second/10))
	return nil
}
