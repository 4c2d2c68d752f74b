// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"
)

// A progress says what is going on: on a terminal in one line that is written over again and again,
// elsewhere in a line for each run.
type progress struct {
	out      io.Writer
	terminal bool

	total, finished int
	ran             int           // of the finished, those that took time
	took            time.Duration // by those
	last            time.Time
}

func (p *progress) begin(total int) { p.total, p.last = total, time.Now() }

// now says what is being done.
func (p *progress) now(text string) {
	p.last = time.Now()
	if !p.terminal {
		return
	}
	left := ""
	if p.total > 0 {
		left = fmt.Sprintf("[%d/%d", p.finished+1, p.total)
		if p.ran > 0 {
			remaining := p.took / time.Duration(p.ran) * time.Duration(p.total-p.finished)
			left += ", " + remaining.Round(time.Second).String() + " left"
		}
		left += "] "
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s%s", left, text)
}

// step says what is being done besides runs.
func (p *progress) step(text string) {
	if p.terminal {
		p.now(text)
	} else {
		fmt.Fprintln(p.out, text)
	}
}

// done says how a run went.
func (p *progress) done(text string) {
	p.finished++
	p.ran++
	p.took += time.Since(p.last)
	if !p.terminal {
		fmt.Fprintf(p.out, "%d/%d  %s\n", p.finished, p.total, text)
	}
}

// note leaves a line on a terminal. Elsewhere each run has one anyway.
func (p *progress) note(text string) {
	if p.terminal {
		p.clear()
		fmt.Fprintln(p.out, text)
	}
}

// skip counts a run that is not worth it.
func (p *progress) skip() { p.finished++ }

// clear removes the line, for others to write.
func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
