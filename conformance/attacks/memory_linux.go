// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// measurable reports whether this platform can limit and measure a victim.
const measurable = true

// limitAddressSpace makes allocations beyond the limit end this process.
func limitAddressSpace(limit uint64) error {
	return syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: limit, Max: limit})
}

// raiseFileLimit lets this process open as many files as it may.
func raiseFileLimit() {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // the attacks that need more will say so
	}
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // it cannot fail with these arguments
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// stolenTime returns how long a hypervisor has held the processors of this machine, or 0 where the
// kernel does not say.
func stolenTime() time.Duration {
	text, _ := os.ReadFile("/proc/stat") // user nice system idle iowait irq softirq steal, in hundredths of a second
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0
	}
	n, _ := strconv.ParseInt(fields[8], 10, 64)
	return time.Duration(n) * 10 * time.Millisecond
}

// residentMemory returns the resident memory of a process, in bytes, and the most that it was since
// resetPeak.
func residentMemory(pid int) (now, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) != 3 {
			continue
		}
		n, err := strconv.ParseInt(string(fields[1]), 10, 64)
		if err != nil {
			continue
		}
		switch string(fields[0]) {
		case "VmRSS:":
			now = n << 10
		case "VmHWM:":
			peak = n << 10
		}
	}
	return now, peak, nil
}

// resetPeak makes the resident memory of a process its peak.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}
