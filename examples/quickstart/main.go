// SPDX-License-Identifier: Apache-2.0

// Command quickstart shows the main job of yodel in a few seconds, on one machine, with nothing else installed:
//
//	go run ./examples/quickstart
//
// It starts three instances of a service as processes of their own and keeps calling them. Meanwhile it kills one of
// them and shuts another one down. In the end it compares what the callers were told with what the instances did, and
// fails unless every call had the outcome it has to have:
//
//   - One that was certainly not executed is sent to another instance. The client does so by itself.
//   - One that may have been executed is sent again if its method was declared idempotent. A middleware does so.
//   - The rest, those that the killed process had begun, are interrupted: their callers are told so.
//   - Everything else succeeds, once.
//
// The service is in shop.go, its processes are in instance.go, the callers in load.go, the reckoning in report.go.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

func main() {
	seconds := flag.Float64("seconds", 8, "how long to make calls")
	callers := flag.Int("callers", 60, "how many make calls at once")
	name := flag.String("instance", "", "be the instance of this name; the program starts itself so")
	flag.Parse()

	if *name != "" {
		exit(serve(*name))
	}
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt)
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
	var shop []*instance
	defer func() {
		for _, in := range shop {
			in.kill() // what still runs, when something went wrong
		}
	}()
	for _, name := range []string{"a", "b", "c"} {
		in, err := start(ctx, name)
		if err != nil {
			return err
		}
		shop = append(shop, in)
		fmt.Printf("%s is process %d and listens at %s\n", name, in.cmd.Process.Pid, in.addr)
	}
	fmt.Printf("%d callers for %v; %s is idempotent, %s is not\n\n", callers, length, Price, Buy)

	l := startLoad(ctx, shop, callers)
	l.watch(ctx, length/3)
	if ctx.Err() == nil {
		l.event("a is killed")
		shop[0].kill()
	}
	l.watch(ctx, length*2/3)
	if ctx.Err() == nil {
		l.event("b is shut down")
		shop[1].shutDown()
	}
	l.watch(ctx, length)
	l.event("the end")
	l.stop()
	for _, in := range shop {
		in.shutDown()
		in.wait()
	}
	return report(l, shop)
}
