// SPDX-License-Identifier: Apache-2.0

// Command cluster shows how traffic follows a registry, on one machine, with nothing else
// installed:
//
//	go run ./examples/cluster
//
// It runs etcd inside of itself, and instances of a service as processes of their own, which
// announce themselves there. A client follows them, and callers call through it. Meanwhile
// instances are added, killed, weighted, disabled, enabled and shut down, one step after the other,
// while a line shows how many calls each executes per second. In the end it says how the calls of
// each step were shared out, compares what callers were told with what the instances did, and fails
// if a call failed, was executed twice though it must not be, or if the shares are not the weights.
//
// The steps are in steps.go, the service in shop.go, its processes are in instance.go, etcd is in
// etcd.go, the callers are in load.go, the reckoning is in report.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	check := flag.Bool("check", false, "take a quarter of the time")
	step := flag.Duration("step", 8*time.Second, "how long each step takes")
	callers := flag.Int("callers", 60, "how many make calls at once")
	name := flag.String("instance", "", "be the instance of this name; the program starts itself so")
	registry := flag.String("etcd", "", "where that instance announces itself")
	flag.Parse()
	if flag.NArg() > 0 || *callers < 1 || *step <= 0 {
		fmt.Fprintln(os.Stderr, "want flags only, at least one caller, and some time")
		flag.Usage()
		os.Exit(2)
	}

	if *name != "" {
		exit(serve(*name, *registry))
	}
	if *check {
		*step /= 4
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	exit(run(ctx, *step, *callers))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the whole show. When ctx ends, the rest of it is left out.
func run(ctx context.Context, length time.Duration, callers int) error {
	e, err := startEtcd()
	if err != nil {
		return err
	}
	defer e.stop()
	s := &shop{etcd: e.addr}
	defer func() {
		for _, in := range s.instances {
			in.Kill() // what still runs, when something went wrong
		}
	}()
	for _, name := range []string{"a", "b", "c"} {
		if err := s.open(ctx, name); err != nil {
			return err
		}
		in := s.named(name)
		fmt.Printf("%s is process %d and listens at %s\n", name, in.PID, in.addr)
	}
	fmt.Printf("etcd is at localhost:%s: etcdctl --endpoints localhost:%[1]s get --prefix yodel/\n", e.port())
	fmt.Printf("%d callers; %s is idempotent, %s is not; calls per second:\n\n", callers, Price, Buy)

	l := startLoad(ctx, e.addr, callers)
	defer l.close()
	err = s.takeSteps(ctx, l, length)
	l.stop()
	for _, in := range s.instances {
		in.ShutDown()
		in.Wait()
	}
	return errors.Join(err, report(l, s))
}
