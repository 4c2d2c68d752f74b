// SPDX-License-Identifier: Apache-2.0

// Package leak finds goroutines that outlive tests. It is for the packages below the root, whose
// tests would otherwise need package yodeltest and, through it, the root. Everything between would
// be compiled again for them.
package leak

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience is how long a goroutine may take to end after its last use.
const patience = 5 * time.Second

// Verify runs the tests of a package, and does not return. It is yodeltest.VerifyNoLeaks.
func Verify(m interface{ Run() int }) {
	code := m.Run()
	if code == 0 {
		if left := Outliving(nil); left != "" {
			fmt.Fprintf(os.Stderr, "goroutines outlive the tests:\n\n%s\n", left)
			code = 1
		}
	}
	os.Exit(code)
}

// Check checks that all goroutines of a test have ended. It is yodeltest.NoLeaks.
func Check(t testing.TB) {
	t.Helper()
	before := Goroutines()
	t.Cleanup(func() {
		if t.Failed() {
			return // the failure may be the reason for a leak
		}
		if left := Outliving(before); left != "" {
			t.Errorf("goroutines outlive the test:\n\n%s", left)
		}
	})
}

// Outliving returns the stacks of the goroutines that do not end, except the calling one and those
// in before.
func Outliving(before map[string]string) string {
	for pause, end := time.Millisecond, time.Now().Add(patience); ; pause = min(2*pause, 100*time.Millisecond) {
		left := Goroutines()
		delete(left, ownGoroutine())
		maps.DeleteFunc(left, func(id, stack string) bool { return before[id] != "" || belongsToGo(stack) })
		if len(left) == 0 {
			return ""
		}
		if time.Now().After(end) {
			return strings.Join(slices.Sorted(maps.Values(left)), "\n\n")
		}
		time.Sleep(pause) //nolint:forbidigo // nothing tells when a goroutine has ended
	}
}

// Goroutines returns the stack of each goroutine by its name, such as "goroutine 7". Names are
// never reused.
func Goroutines() map[string]string {
	text := make([]byte, 1<<20)
	for {
		n := runtime.Stack(text, true)
		if n < len(text) {
			text = text[:n]
			break
		}
		text = make([]byte, 2*len(text))
	}
	found := map[string]string{}
	for stack := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		found[goroutineName(stack)] = stack
	}
	return found
}

func ownGoroutine() string {
	var text [64]byte
	return goroutineName(string(text[:runtime.Stack(text[:], false)]))
}

// goroutineName returns the name at the beginning of a stack such as "goroutine 7 [chan receive]:".
func goroutineName(stack string) string {
	name, _, _ := strings.Cut(stack, " [")
	return name
}

// belongsToGo reports whether the runtime or the testing package has started a goroutine for its
// own use.
func belongsToGo(stack string) bool {
	for _, function := range []string{
		"os/signal.signal_recv", "os/signal.loop", "runtime.ensureSigM",
		"runtime.runFinalizers", "runtime.runCleanups", "runtime.ReadTrace",
		"runtime/pprof.profileWriter",
	} {
		if strings.Contains(stack, "\n"+function+"(") {
			return true
		}
	}
	return false
}
