// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/yodeltest"
)

// instead is what a process does that a benchmark has started, instead of testing.
var instead func()

func TestMain(m *testing.M) {
	if instead != nil {
		instead()
		return
	}
	yodeltest.VerifyNoLeaks(m)
}
