// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// serveEnv is set in a process that a benchmark has started, to what it serves with.
const serveEnv = "MUX_BENCH_SERVE"

// someLimit keeps the reserve out of what tests measure.
const someLimit = math.MaxInt64 - 1

func TestMain(m *testing.M) {
	if with := os.Getenv(serveEnv); with != "" {
		serveBench(with)
		return
	}
	debug.SetMemoryLimit(someLimit)
	mux.PanicOnImpossibleReadStates()
	leak.Verify(m)
}
