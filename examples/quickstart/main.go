// SPDX-License-Identifier: Apache-2.0

// Command quickstart shows the main job of yodel in a few seconds, on one machine, with nothing
// else installed:
//
//	go run ./examples/quickstart
//
// It starts three instances of a service as processes of their own and keeps calling them. They
// announce themselves to a registry, a folder here, and the client follows it. Meanwhile it kills
// one of them, starts a fourth one, and shuts another one down. In the end it compares what the
// callers were told with what the instances did, and fails unless every call had the outcome it has
// to have:
//
//   - One that was certainly not executed is sent to another instance. The client does so by
//     itself.
//   - One that may have been executed is sent again if its method was declared idempotent. A
//     middleware does so.
//   - The rest, those that the killed process had begun, are interrupted: their callers are told
//     so.
//   - Everything else succeeds, once.
//
// The service is in shop.go, its processes are in instance.go, the callers in load.go, the
// reckoning in report.go.
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

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
)

func main() {
	seconds := flag.Float64("seconds", 8, "how long to make calls")
	callers := flag.Int("callers", 60, "how many make calls at once")
	name := flag.String("instance", "", "be the instance of this name; the program starts itself so")
	folder := flag.String("registry", "", "where that instance announces itself")
	flag.Parse()
	if flag.NArg() > 0 || *callers < 1 || !(*seconds > 0 && *seconds < 1e6) { // nor NaN
		fmt.Fprintln(os.Stderr, "want flags only, at least one caller, and some time")
		flag.Usage()
		os.Exit(2)
	}

	if *name != "" {
		exit(serve(*name, *folder))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	exit(run(ctx, time.Duration(*seconds*float64(time.Second)), *callers))
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
	folder, err := os.MkdirTemp("", "yodel-quickstart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // it is a temporary one
	var shop []*instance
	defer func() {
		for _, in := range shop {
			in.Kill() // what still runs, when something went wrong
		}
	}()
	open := func(name string) error {
		in, err := start(ctx, name, folder)
		if err == nil {
			shop = append(shop, in)
		}
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := open(name); err != nil {
			return err
		}
		in := shop[len(shop)-1]
		fmt.Printf("%s is process %d and listens at %s\n", name, in.PID, in.addr)
	}
	registry := file.New(folder, nil).Service("Shop")
	if err := found(ctx, registry, len(shop)); err != nil {
		return err
	}
	fmt.Printf("%d callers for %v; %s is idempotent, %s is not\n\n", callers, length, Price, Buy)

	l := startLoad(ctx, registry, []string{"a", "b", "c", "d"}, callers)
	l.watch(ctx, length*3/10)
	if ctx.Err() == nil {
		l.event("a is killed")
		shop[0].Kill()
	}
	l.watch(ctx, length*11/20)
	if ctx.Err() == nil {
		l.event("d is started")
		err = open("d")
	}
	l.watch(ctx, length*4/5)
	if ctx.Err() == nil {
		l.event("b is shut down")
		shop[1].ShutDown()
	}
	l.watch(ctx, length)
	l.event("the end")
	l.stop()
	for _, in := range shop {
		in.ShutDown()
		in.Wait()
	}
	return errors.Join(err, report(l, shop))
}

// found waits until a registry knows so many instances.
func found(ctx context.Context, r discovery.Resolver, n int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	known := 0
	err := r.Watch(ctx, func(instances []discovery.Instance) {
		if known = len(instances); known >= n {
			cancel()
		}
	})
	if err == nil && known < n {
		err = fmt.Errorf("the registry knows %d of %d instances", known, n)
	}
	return err
}
