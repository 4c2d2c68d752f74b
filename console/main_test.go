// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"os"
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/leak"
)

// TestMain makes the test's program a process of the shop, or one that follows rules, when a test
// starts it as such.
func TestMain(m *testing.M) {
	governed.Child(openFolder)
	if role := os.Getenv(shopRole); role != "" {
		if err := runShopProcess(role, os.Getenv(shopFolder)); err != nil {
			fmt.Fprintln(os.Stderr, role, err)
			os.Exit(1)
		}
		return
	}
	leak.Verify(tests{m})
}

// tests runs the tests, and ends the browser that they share.
type tests struct{ *testing.M }

func (m tests) Run() int {
	defer stopChromium()
	return m.M.Run()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
