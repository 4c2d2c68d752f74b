// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"log/slog"
	"sync"
	"time"
)

// A peerLine is a kind of log line that a peer can cause at any rate.
type peerLine int

const (
	lineRefused peerLine = iota
	lineForeign
	lineBreach
	lineSilent
	lineTransport
	lineHidden
	peerLineKinds
)

var peerLineTexts = [peerLineKinds]string{
	lineRefused:   "yodel: connection refused",
	lineForeign:   "yodel: a peer does not speak yodel",
	lineBreach:    "yodel: a peer broke the protocol",
	lineSilent:    "yodel: a peer connected and did not say what it speaks",
	lineTransport: "yodel: the transport refused a peer",
	lineHidden:    "yodel: a call failed, and its caller does not see the error",
}

// At most linesPerPeriod lines of each kind are logged in a linePeriod. The period begins with its
// first line.
const (
	linesPerPeriod = 10
	linePeriod     = 10 * time.Second
)

// peerLines logs faults of peers at a limited rate. It uses a constant amount of memory, and
// dropping a line takes constant time.
type peerLines struct {
	log *slog.Logger

	mu     sync.Mutex
	closed bool
	kinds  [peerLineKinds]struct {
		lines int         // in this period, including dropped ones
		end   *time.Timer // ends the period; nil outside of one
	}
}

// warn logs a line, unless there were too many of its kind. It calls attrs only for a line that it
// logs.
func (p *peerLines) warn(kind peerLine, attrs func() []any) {
	if p.admit(kind) {
		p.log.Warn(peerLineTexts[kind], attrs()...)
	}
}

func (p *peerLines) admit(kind peerLine) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := &p.kinds[kind]
	k.lines++
	if k.end == nil && !p.closed {
		k.end = time.AfterFunc(linePeriod, func() { p.endPeriod(kind) })
	}
	return k.lines <= linesPerPeriod
}

// endPeriod logs how many lines of a kind were dropped, and resets the count.
func (p *peerLines) endPeriod(kind peerLine) {
	p.mu.Lock()
	k := &p.kinds[kind]
	leftOut := k.lines - linesPerPeriod
	k.lines = 0
	if k.end != nil {
		k.end.Stop()
		k.end = nil
	}
	p.mu.Unlock()
	if leftOut > 0 {
		p.log.Warn(peerLineTexts[kind]+": more such lines were left out", "lines", leftOut)
	}
}

// flush ends all periods. Afterwards no timer is started.
func (p *peerLines) flush() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for kind := range peerLineKinds {
		p.endPeriod(kind)
	}
}
