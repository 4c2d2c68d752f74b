// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A usage is what the kernel has counted for a process since its start. It is the same for every
// language.
//
// Reads and writes are system calls of these two families on any file, also vain ones and those
// that wake a poller; recv, send and their relatives are not among them. In a program that does
// nothing but talk over sockets with read and write they are those of the sockets.
type usage struct {
	cpu                              time.Duration
	reads, writes, bytesIn, bytesOut uint64
}

// A wire is what a network interface has carried.
type wire struct{ bytes, packets float64 }

// usageOf reads what process pid has used.
func usageOf(pid int) (usage, error) {
	cpu, err := cpuOf(pid)
	if err != nil {
		return usage{}, err
	}
	counters, err := procFields(pid, "io")
	if err != nil {
		return usage{}, err
	}
	return usage{
		cpu:   cpu,
		reads: counters["syscr"], writes: counters["syscw"],
		bytesIn: counters["rchar"], bytesOut: counters["wchar"],
	}, nil
}

// cpuOf reads the processor time of a process, user and system together. /proc/PID/stat has the
// same sum in steps of 10 ms, and /proc/PID/task/*/schedstat forgets threads that have ended: the
// process's own clock is exact.
func cpuOf(pid int) (time.Duration, error) {
	const wholeProcess = 2 // CPUCLOCK_SCHED; clock_getcpuclockid(3) does this
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(pid)<<3|wholeProcess, &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// memoryOf reads how much memory a process has, and the most it ever had, in bytes.
func memoryOf(pid int) (now, peak uint64, err error) {
	fields, err := procFields(pid, "status")
	if err != nil {
		return 0, 0, err
	}
	return fields["VmRSS"] << 10, fields["VmHWM"] << 10, nil
}

// wireOf reads how many bytes and packets the loopback interface has carried, with the headers of
// IP and TCP and with what only acknowledges. It misses nothing, but it is that of all programs of
// the machine.
func wireOf() (wire, error) {
	text, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return wire{}, err
	}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if strings.TrimSpace(name) != "lo" || len(fields) < 2 {
			continue
		}
		bytes, err1 := strconv.ParseFloat(fields[0], 64)
		packets, err2 := strconv.ParseFloat(fields[1], 64)
		return wire{bytes, packets}, errors.Join(err1, err2)
	}
	return wire{}, errors.New("/proc/net/dev has no loopback interface lo")
}

// procFields reads the numbers of a file of lines like "syscr: 10" and "VmHWM:  1234 kB".
func procFields(pid int, file string) (map[string]uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return nil, err
	}
	fields := make(map[string]uint64)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if n, err := strconv.ParseUint(number, 10, 64); err == nil { // most lines of status are no numbers
			fields[name] = n
		}
	}
	return fields, nil
}
