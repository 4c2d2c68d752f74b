// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Machine is where it was measured, and with what.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory uint64 `json:"memory"`
	Kernel string `json:"kernel"`
	// LoadBefore is the kernel's load average over the minute before the command began.
	LoadBefore float64 `json:"load_before"`
	Go         string  `json:"go"`
	Java       string  `json:"java,omitempty"`
	Revision   string  `json:"revision"` // of yodel
}

// thisMachine looks around. What cannot be found out stays empty.
func thisMachine(root string, java bool) Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: cpuModel()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:]) + " " + unix.ByteSliceToString(name.Machine[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = info.Totalram * uint64(info.Unit)
		m.LoadBefore = float64(info.Loads[0]) / (1 << 16)
	}
	m.Revision = said(root, "git", "rev-parse", "--short=10", "HEAD")
	if m.Revision != "" && said(root, "git", "status", "--porcelain", "--untracked-files=no") != "" {
		m.Revision += " and changes"
	}
	if java {
		m.Java = said(root, "java", "--version")
	}
	return m
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// said is the first line of what a command prints.
func said(dir, name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	text, err := cmd.Output()
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return first
}

func (m Machine) MemoryGiB() string {
	return strconv.FormatFloat(float64(m.Memory)/(1<<30), 'f', 0, 64) + " GiB"
}
