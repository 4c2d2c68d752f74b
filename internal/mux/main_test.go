// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"os"
	"testing"

	"github.com/yodel-rpc/yodel/yodeltest"
)

// serveEnv is set in a process that a benchmark has started, to what it serves with.
const serveEnv = "MUX_BENCH_SERVE"

func TestMain(m *testing.M) {
	if with := os.Getenv(serveEnv); with != "" {
		serveBench(with)
		return
	}
	yodeltest.VerifyNoLeaks(m)
}
