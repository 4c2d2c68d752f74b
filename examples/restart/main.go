// SPDX-License-Identifier: Apache-2.0

// Command restart shows that the instances of a service can be restarted under load and nobody
// notices: with retries off, and with streams that have no end.
//
//	go run ./examples/restart -check
//
// It starts three instances as processes of their own. Callers and streams use them through one
// client, while one instance after the other is restarted, in two ways in turn: its process hands
// the socket over to a successor (package restart), or it is stopped and started anew at the same
// address. In the end it compares what the callers were told with what the processes did, and fails
// if a call or a message was lost or executed twice.
//
// The service is in service.go; streams.go is the other side of its streams and is worth copying.
// What a process of the service does is in process.go, how it is restarted in instance.go, the
// callers in load.go, the reckoning in report.go.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// A plan is when the show ends: after that many restarts, with pauses between them, and that many
// calls.
type plan struct {
	restarts int
	pause    time.Duration
	calls    int64
}

func main() {
	check := flag.Bool("check", false, "end after -restarts, spread over -for; without it, Ctrl-C is the end")
	length := flag.Duration("for", 25*time.Second, "how long that many restarts take")
	restarts := flag.Int("restarts", 12, "how many restarts")
	calls := flag.Int64("calls", 0, "as -check, and go on until that many calls have been made")
	callers := flag.Int("callers", 50, "how many make calls at once")
	streams := flag.Int("streams", 20, "how many streams there are")
	instance := flag.String("instance", "", "be an instance at this address; the program starts itself so")
	flag.Parse()
	if flag.NArg() > 0 || *restarts < 0 || *callers < 0 || *streams < 0 || *length <= 0 || *callers+*streams == 0 {
		fmt.Fprintln(os.Stderr, "want flags only, no negative numbers, some time, and callers or streams")
		flag.Usage()
		os.Exit(2)
	}

	if *instance != "" {
		exit(serve(*instance))
	}
	p := plan{restarts: *restarts, calls: *calls}
	p.pause = max(*length/time.Duration(p.restarts+1), time.Millisecond)
	if !*check && *calls == 0 {
		p.restarts = math.MaxInt
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	exit(run(ctx, p, *callers, *streams))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the whole show. When ctx ends, the rest of it is left out.
func run(ctx context.Context, p plan, callers, streams int) error {
	b := newBooks(streams)
	var service []*instance
	defer func() {
		for _, in := range service {
			in.kill() // what still runs, when something went wrong
		}
	}()
	for _, name := range []string{"a", "b", "c"} {
		in := &instance{name: name, addr: "127.0.0.1:0", books: b}
		service = append(service, in)
		if err := in.start(); err != nil {
			return err
		}
		fmt.Printf("%s is process %d and listens at %s\n", name, in.row.pid(), in.addr)
	}
	fmt.Printf("%d callers and %d streams, no retries\n\n", callers, streams)

	l := startLoad(service, callers, streams)
	failed := l.watch(func() error { return p.carryOut(ctx, l, service) })
	l.stop()
	for _, in := range service {
		in.shutDown() // which ends the feeds: they have no other end
	}
	for _, in := range service {
		_ = in.wait() // report looks at it
	}
	l.wait()
	return report(l, service, b, failed)
}

// carryOut restarts one instance after the other, in two ways in turn.
func (p plan) carryOut(ctx context.Context, l *load, service []*instance) error {
	ticks := time.NewTicker(p.pause)
	defer ticks.Stop()
	for done := 0; ; done++ {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			if p.restarts == math.MaxInt {
				return nil
			}
			return fmt.Errorf("interrupted after %d restarts", done)
		}
		if done >= p.restarts && l.calls.Load() >= p.calls {
			return nil
		}
		in := service[done%len(service)]
		way := in.handOver
		if done%2 == 1 {
			way = in.restart
		}
		began := time.Now()
		what, err := way()
		if err != nil {
			return err
		}
		l.restarted(fmt.Sprintf("%s %s, %v", in.name, what, time.Since(began).Round(time.Millisecond)))
	}
}
