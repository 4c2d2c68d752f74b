// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
)

// VerifyNoLeaks runs the tests of a package. If goroutines outlive the tests, it prints their
// stacks and the run fails. It is the only statement of a TestMain and does not return:
//
//	func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }
//
// It waits up to five seconds for the goroutines to end. It does not check a run that has failed.
func VerifyNoLeaks(m *testing.M) { leak.Verify(m) }

// NoLeaks checks at the end of a test, after its cleanups, that all goroutines of the test have
// ended. Otherwise the test fails, with their stacks. Call it first in the test, so that its own
// cleanup runs last. Do not call it in a test that runs in parallel with others, because their
// goroutines would count too.
func NoLeaks(t testing.TB) {
	t.Helper()
	leak.Check(t)
}
