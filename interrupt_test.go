// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// hangingServerEnv makes the test program a server whose method hangs.
const hangingServerEnv = "YODEL_TEST_HANGING_SERVER"

// serveHanging is a program as the documentation of ListenAndServe has it.
func serveHanging() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop()
		fmt.Fprintln(os.Stderr, "restored") // the effect of a signal
	})
	s := yodel.NewServer(&yodel.ServerOptions{DrainTimeout: time.Minute})
	err := s.Handle("Shop.Hang", func() {
		fmt.Fprintln(os.Stderr, "hanging")
		select {}
	})
	if err == nil {
		err = s.ListenAndServe(ctx, "127.0.0.1:0")
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestASecondInterruptEndsAServerAtOnce(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no signals to send")
	}
	interrupt := syscall.SIGINT
	if signal.Ignored(os.Interrupt) { // as in a shell's background job, and then a child ignores it too
		interrupt = syscall.SIGTERM
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	program, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), hangingServerEnv+"=1")
	log, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(log)
	var seen []string
	wait := func(want string) []string { // in any order
		t.Helper()
		pattern := regexp.MustCompile(want)
		for _, line := range seen {
			if found := pattern.FindStringSubmatch(line); found != nil {
				return found
			}
		}
		for lines.Scan() {
			seen = append(seen, lines.Text())
			if found := pattern.FindStringSubmatch(lines.Text()); found != nil {
				return found
			}
		}
		t.Fatalf("the server did not log %s:\n%s", want, strings.Join(seen, "\n"))
		return nil
	}
	addr := wait(`INFO yodel: listening addr=(127\.0\.0\.1:\d+) transport=tcp`)[1]
	c := newClient(t, nil, addr)
	outcome := make(chan error, 1)
	go func() { outcome <- c.Call(context.Background(), "Shop.Hang", yodel.Values{}, nil) }()
	wait("hanging")
	must(t, cmd.Process.Signal(interrupt))
	wait(`INFO yodel: draining calls=1 open="Shop.Hang from 127\.0\.0\.1:\d+" forAtMost=`)
	wait("restored") // by another goroutine than the one that drains
	select {
	case err := <-outcome:
		t.Errorf("the first interrupt ended the call with %v", err)
	default:
	}
	began := time.Now()
	must(t, cmd.Process.Signal(interrupt))
	for lines.Scan() {
		t.Errorf("the server logged %q after the second interrupt", lines.Text())
	}
	exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
	if status, _ := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != interrupt {
		t.Errorf("the server ended with %v, want the second interrupt", exit)
	}
	t.Logf("the process ended %v after the second interrupt", time.Since(began))
	if err := receive(t, outcome, "the call ends"); err == nil {
		t.Error("the call succeeded")
	}
}
