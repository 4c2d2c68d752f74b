// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"time"
)

// A meter shows how a transfer gets on, in one line that it writes over and over.
type meter struct {
	name  string
	began time.Time
	from  int64 // where the transfer began
	at    int64
	size  int64
	shown time.Time
	quiet bool // nobody looks: the output is no terminal
}

func newMeter(name string) *meter {
	info, err := os.Stdout.Stat()
	return &meter{name: name, quiet: err != nil || info.Mode()&os.ModeCharDevice == 0}
}

// report is a progress.
func (m *meter) report(at, size int64) {
	now := time.Now()
	if at < m.at || m.began.IsZero() { // the first report, or a second beginning
		m.began, m.from = now, at
	}
	m.at, m.size = at, size
	if m.quiet || now.Sub(m.shown) < 100*time.Millisecond && at < size {
		return
	}
	m.shown = now
	fmt.Printf("\r%s  %s of %s  %3.0f %%  %s   ", m.name, megabytes(at), megabytes(size), 100*float64(at)/float64(max(size, 1)), m.rate(now))
}

func (m *meter) rate(now time.Time) string {
	return megabytes(int64(float64(m.at-m.from)/max(now.Sub(m.began).Seconds(), 1e-6))) + "/s"
}

// end writes the last line.
func (m *meter) end(err error) {
	if !m.quiet && !m.began.IsZero() {
		fmt.Println()
	}
	if m.from > 0 {
		fmt.Printf("%s: %s were there already\n", m.name, megabytes(m.from))
	}
	if err == nil {
		fmt.Printf("%s: complete, %d bytes, checked by SHA-256, %s\n", m.name, m.size, m.rate(time.Now()))
	}
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
