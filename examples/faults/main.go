// SPDX-License-Identifier: Apache-2.0

// Command faults shows what becomes of calls when one of ten servers goes bad, on one machine, with
// nothing else installed:
//
//	go run ./examples/faults
//
// It runs ten servers as processes of their own, whose method takes 20 ms, and callers that call it
// all the time with the recommended chain. Then one server is made slow, one is stopped, one is cut
// off by a proxy that drops what is sent, and one fails half of its calls: one after the other,
// with all being well in between. Each of them has not been bad before, because a client gives a
// server that was more time each time. Of each fault it measures the calls that are made from 2 s
// after its begin, and compares them with those while all was well before and after it. No call may
// fail, and the 99th percentile may be a tenth larger, times the factor by which the healthy
// windows of the same run differ from each other: on a busy machine they differ more. The 99th
// percentile of a measurement is the median of those of its eight parts, so that one stall of the
// machine does not count.
//
// The servers are in server.go, the proxy is in proxy.go, the callers are in load.go, the reckoning
// is in report.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() {
	check := flag.Bool("check", false, "take half of the time")
	window := flag.Duration("window", 4*time.Second, "how long each measurement takes")
	callers := flag.Int("callers", 40, "how many make calls at once")
	name := flag.String("server", "", "be the server of this name; the program starts itself so")
	flag.Parse()
	if flag.NArg() > 0 || *callers < 1 || *window < time.Second {
		fmt.Fprintln(os.Stderr, "want flags only, at least one caller, and windows of at least a second")
		flag.Usage()
		os.Exit(2)
	}
	if *name != "" {
		exit(serve(*name))
	}
	if *check {
		*window /= 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	exit(run(ctx, *window, *callers))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// settle is how long the calls have to get over the begin of a fault, or its end.
const settle = 2 * time.Second

// servers is how many there are.
const servers = 10

// A fault is what is done to a server.
type fault struct {
	name       string
	server     int
	begin, end func() error
}

// run is the whole show. When ctx ends, the rest of it is left out.
func run(ctx context.Context, length time.Duration, callers int) error {
	f := &fleet{}
	defer f.kill() // what still runs, when something went wrong
	if err := f.start(ctx); err != nil {
		return err
	}
	faults := slices.Concat(
		[]fault{{"slow", 0, f.servers[0].say("slow"), f.servers[0].say("well")}},
		stopped(1, f.servers[1]),
		[]fault{{"cut off", cut, f.proxy.drop(true), f.proxy.drop(false)}},
		[]fault{{"failing", 3, f.servers[3].say("failing"), f.servers[3].say("well")}},
	)
	fmt.Printf("%d servers, of which each call takes %v; %d callers; calls per second, and the longest call:\n\n", servers, takes, callers)
	l, err := startLoad(ctx, f.addrs(), callers)
	if err != nil {
		return err
	}
	defer l.close()

	l.watch(ctx, settle)
	windows := []window{l.measure(ctx, nil, length)}
	for _, fault := range faults {
		if ctx.Err() != nil {
			break
		}
		l.event(fault.name)
		if err := fault.begin(); err != nil {
			return fmt.Errorf("server %d cannot be made %s: %w", fault.server, fault.name, err)
		}
		l.watch(ctx, settle)
		windows = append(windows, l.measure(ctx, &fault, length))
		l.event("well")
		if err := fault.end(); err != nil {
			return fmt.Errorf("server %d cannot be made well: %w", fault.server, err)
		}
		l.watch(ctx, settle)
		windows = append(windows, l.measure(ctx, nil, length))
	}
	l.event("the end")
	l.stop()
	return errors.Join(f.stop(), report(ctx, l, windows))
}
