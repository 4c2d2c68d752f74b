// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// unknownMachine is the memory that is assumed if the system does not report it.
	unknownMachine = 4 << 30
	// leastMemory is the smallest default, so that a message of usual size
	// fits.
	leastMemory = 64 << 20
)

// OrDefault returns n if it is positive, and else the default of a Limit, in bytes. If GOMEMLIMIT
// is set, the default is half of GOMEMLIMIT. Otherwise it is a quarter of the memory of the machine
// or of the control group, whichever is less. It is not more than that, because a heap may grow to
// twice the memory in use. The default is at least 64 MiB.
func OrDefault(n int) int {
	if n > 0 {
		return n
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64/2 {
		return max(int(min(limit/2, math.MaxInt)), leastMemory)
	}
	return max(int(min(machineMemory(os.DirFS("/"))/4, math.MaxInt)), leastMemory)
}

// machineMemory returns the bytes of memory that the process can use, from the files of Linux below
// root.
func machineMemory(root fs.FS) int64 {
	memory := int64(unknownMachine)
	if text, err := fs.ReadFile(root, "proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 1 && f[0] == "MemTotal:" {
				if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil && kib < math.MaxInt64>>10 {
					memory = kib << 10
				}
			}
		}
	}
	for _, file := range limitFiles(root) {
		if text, err := fs.ReadFile(root, file); err == nil {
			// the value "max" means no limit
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				memory = min(memory, n)
			}
		}
	}
	return memory
}

// limitFiles returns the files that may contain the memory limits of the process's control groups.
func limitFiles(root fs.FS) (files []string) {
	const v1, v2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
	files = append(files, path.Join(v1, "memory.limit_in_bytes"), path.Join(v2, "memory.max"))
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return files
	}
	for line := range strings.Lines(string(groups)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(part) < 3 {
			continue
		}
		for group := path.Clean("/" + part[2]); group != "/"; group = path.Dir(group) {
			switch part[1] {
			case "":
				files = append(files, path.Join(v2, group, "memory.max"))
			case "memory":
				files = append(files, path.Join(v1, group, "memory.limit_in_bytes"))
			}
		}
	}
	return files
}
