// SPDX-License-Identifier: Apache-2.0

package yodeltest_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/yodeltest"
)

// leakVariable asks a run of this test binary to leave a goroutine behind.
const leakVariable = "YODELTEST_LEAK"

func TestMain(m *testing.M) {
	if os.Getenv(leakVariable) != "" {
		go waitFor(nil)
	}
	yodeltest.VerifyNoLeaks(m)
}

func waitFor(end <-chan struct{}) { <-end }

func TestVerifyNoLeaksFailsARunThatLeaks(t *testing.T) {
	run := exec.Command(os.Args[0], "-test.run=^$")
	run.Env = append(os.Environ(), leakVariable+"=1")
	output, err := run.CombinedOutput()
	if run.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v, want exit code 1", err)
	}
	if !strings.Contains(string(output), "yodeltest_test.waitFor(") {
		t.Errorf("got this output, want the stack of the goroutine in it:\n%s", output)
	}
}

func TestNoLeaksFailsATestThatLeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time is fake: patience costs none
		end := make(chan struct{})
		defer close(end)
		leaky := &recorder{TB: t}
		yodeltest.NoLeaks(leaky)
		go waitFor(end)
		leaky.cleanup()
		if !strings.Contains(leaky.message, "yodeltest_test.waitFor(") {
			t.Errorf("got %q, want the stack of the goroutine", leaky.message)
		}
	})
}

func TestNoLeaksWaitsForAGoroutineThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &recorder{TB: t}
		yodeltest.NoLeaks(slow)
		end := make(chan struct{})
		go waitFor(end)
		time.AfterFunc(time.Second, func() { close(end) })
		slow.cleanup()
		if slow.message != "" {
			t.Errorf("got %q, want no error", slow.message)
		}
	})
}

func TestNoLeaksLeavesOutWhatRanBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		go waitFor(end)
		clean := &recorder{TB: t}
		yodeltest.NoLeaks(clean)
		clean.cleanup()
		if clean.message != "" {
			t.Errorf("got %q, want no error", clean.message)
		}
	})
}

// A recorder is a test that may fail.
type recorder struct {
	testing.TB
	cleanup func()
	message string
}

func (r *recorder) Cleanup(f func())                { r.cleanup = f }
func (r *recorder) Failed() bool                    { return r.message != "" }
func (r *recorder) Errorf(text string, args ...any) { r.message = fmt.Sprintf(text, args...) }

func ExampleNoLeaks() {
	_ = func(t *testing.T) {
		yodeltest.NoLeaks(t)
		// Start and stop things: what still runs when t has ended makes it fail.
	}
	// Output:
}

func ExampleVerifyNoLeaks() {
	_ = func(m *testing.M) { // TestMain of a package
		yodeltest.VerifyNoLeaks(m)
	}
	// Output:
}
