// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"
)

func TestTheMemoryOfTheMachineIsFound(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const total = "MemTotal:       16000000 kB\nMemFree: 1 kB\n"
	for name, test := range map[string]struct {
		files fstest.MapFS
		want  int64
	}{
		"nothing is told": {fstest.MapFS{}, unknownMachine},
		"no group":        {fstest.MapFS{"proc/meminfo": file(total)}, 16000000 << 10},
		"version 2": {fstest.MapFS{
			"proc/meminfo": file(total), "proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("max\n"),
			"sys/fs/cgroup/a/memory.max": file("1000000000\n"),
		}, 1000000000},
		"version 2, in a namespace": {fstest.MapFS{
			"proc/meminfo": file(total), "proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("2000000000\n"),
		}, 2000000000},
		"version 1": {fstest.MapFS{
			"proc/meminfo": file(total), "proc/self/cgroup": file("3:cpu:/c\n4:memory:/c\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   file("9223372036854771712\n"),
			"sys/fs/cgroup/memory/c/memory.limit_in_bytes": file("3000000000\n"),
		}, 3000000000},
		"nonsense": {fstest.MapFS{
			"proc/meminfo": file("MemTotal: lots\n\nMemTotal:\n"), "proc/self/cgroup": file("0::/../..\n::\nx\n"), "sys/fs/cgroup/memory.max": file("-1"),
		}, unknownMachine},
	} {
		if got := machineMemory(test.files); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestTheDefaultFollowsTheMemoryLimit(t *testing.T) {
	old := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(old)
	debug.SetMemoryLimit(1 << 30)
	if got := OrDefault(0); got != 512<<20 {
		t.Errorf("with GOMEMLIMIT=1GiB: got %d, want half", got)
	}
	debug.SetMemoryLimit(10 << 20)
	if got := OrDefault(0); got != leastMemory {
		t.Errorf("with GOMEMLIMIT=10MiB: got %d, want %d", got, leastMemory)
	}
	debug.SetMemoryLimit(math.MaxInt64)
	if got := OrDefault(0); got < leastMemory {
		t.Errorf("without a limit: got %d", got)
	}
}
