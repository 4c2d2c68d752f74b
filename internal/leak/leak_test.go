// SPDX-License-Identifier: Apache-2.0

package leak_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel/internal/leak"
)

func TestMain(m *testing.M) { leak.Verify(m) }

// A recorder is a test that keeps its cleanup and its message.
type recorder struct {
	testing.TB

	cleanup func()
	message string
}

func (r *recorder) Cleanup(f func())               { r.cleanup = f }
func (r *recorder) Errorf(format string, a ...any) { r.message = fmt.Sprintf(format, a...) }
func (r *recorder) Failed() bool                   { return false }

func TestCheckFailsATestThatLeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time is fake: patience costs none
		end := make(chan struct{})
		defer close(end)
		leaky := &recorder{TB: t}
		leak.Check(leaky)
		go waitFor(end)
		leaky.cleanup()
		if !strings.Contains(leaky.message, "leak_test.waitFor(") {
			t.Errorf("got %q, want the stack of the goroutine", leaky.message)
		}
	})
}

func waitFor(end <-chan struct{}) { <-end }
