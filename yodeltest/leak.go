// SPDX-License-Identifier: Apache-2.0

package yodeltest

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

// leakPatience is how long a goroutine may take to end after its last use.
const leakPatience = 5 * time.Second

// VerifyNoLeaks runs the tests of a package. If goroutines outlive the tests, it prints their
// stacks and the run fails. It is the only statement of a TestMain and does not return:
//
//	func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }
//
// It waits up to five seconds for the goroutines to end. It does not check a run that has failed.
func VerifyNoLeaks(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left := outliving(nil); left != "" {
			fmt.Fprintf(os.Stderr, "goroutines outlive the tests:\n\n%s\n", left)
			code = 1
		}
	}
	os.Exit(code)
}

// NoLeaks checks at the end of a test, after its cleanups, that all goroutines of the test have
// ended. Otherwise the test fails, with their stacks. Call it first in the test, so that its own
// cleanup runs last. Do not call it in a test that runs in parallel with others, because their
// goroutines would count too.
func NoLeaks(t testing.TB) {
	t.Helper()
	before := goroutines()
	t.Cleanup(func() {
		if t.Failed() {
			return // the failure may be the reason for a leak
		}
		if left := outliving(before); left != "" {
			t.Errorf("goroutines outlive the test:\n\n%s", left)
		}
	})
}

// outliving returns the stacks of the goroutines that do not end, except the calling one and those
// in before.
func outliving(before map[string]string) string {
	for pause, end := time.Millisecond, time.Now().Add(leakPatience); ; pause = min(2*pause, 100*time.Millisecond) {
		left := goroutines()
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

// goroutines returns the stack of each goroutine by its name, such as "goroutine 7". Names are
// never reused.
func goroutines() map[string]string {
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
