// SPDX-License-Identifier: Apache-2.0

// Command actors counts words as Apache Spark would: a driver, executors as processes of their own,
// map tasks, a shuffle between the executors, and reduce tasks.
//
//	go run ./examples/actors -check
//
// The program starts three executors. When the first reduce task has ended, it kills one of them.
// The driver starts another process in its place, and runs the map tasks again whose output was
// lost. With -check, the program compares the result with one that it computes itself, and checks
// that the result counts each map task exactly once. It exits with 1 otherwise.
//
// The messages and the words are in job.go. The actors of an executor are in executor.go, the
// driver is in driver.go.
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

	"github.com/yodel-rpc/yodel/actor"
)

func main() {
	var j job
	check := flag.Bool("check", false, "compare the result with one that is computed sequentially")
	flag.IntVar(&j.Maps, "maps", 48, "how many map tasks")
	flag.IntVar(&j.Reduces, "reduces", 12, "how many reduce tasks")
	flag.IntVar(&j.Words, "words", 20000, "how many words a map task counts")
	driver := flag.String("driver", "", "be an executor of the driver at this address; the program starts itself so")
	flag.Parse()
	if flag.NArg() > 0 || j.Maps < 1 || j.Reduces < 2 || j.Words < 1 {
		fmt.Fprintln(os.Stderr, "want flags only, some tasks and words, and at least 2 reduce tasks")
		flag.Usage()
		os.Exit(2)
	}
	var err error
	if *driver != "" {
		err = execute(*driver)
	} else {
		err = run(j, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the driver.
func run(j job, check bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 50*time.Second)
	defer cancel()
	began := time.Now()
	s := actor.NewSystem(&actor.Options{Server: quietServer(), Client: quietClient(), Logger: quiet()})
	d := newDriver(j, s)
	defer d.endExecutors()
	err := d.run(ctx)
	end, cancelEnd := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancelEnd()
	if shutErr := s.Shutdown(end); err == nil {
		err = shutErr
	}
	if err != nil {
		return err
	}
	lost := d.report(time.Since(began))
	if check {
		lost += d.check()
	}
	fmt.Printf("\n%d lost\n", lost)
	if lost > 0 {
		return errors.New("the result is wrong")
	}
	return nil
}
