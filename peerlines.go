// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"log/slog"
	"sync"
	"time"
)

// A peerLine is a kind of line in a server's log that a peer can cause as often as it likes.
type peerLine int

const (
	lineRefused peerLine = iota
	lineForeign
	lineBreach
	lineSilent
	lineTransport
	peerLineKinds
)

var peerLineTexts = [peerLineKinds]string{
	lineRefused:   "yodel: connection refused",
	lineForeign:   "yodel: a peer does not speak yodel",
	lineBreach:    "yodel: a peer broke the protocol",
	lineSilent:    "yodel: a peer connected and did not say what it speaks",
	lineTransport: "yodel: the transport refused a peer",
}

// Of each kind, linesPerPeriod lines are logged in a linePeriod, which begins with the first one.
const (
	linesPerPeriod = 10
	linePeriod     = 10 * time.Second
)

// peerLines logs what peers do wrong. Its memory is constant, and so is the work for a line that is
// left out.
type peerLines struct {
	log *slog.Logger

	mu     sync.Mutex
	closed bool
	kinds  [peerLineKinds]struct {
		lines int         // in this period, those left out included
		end   *time.Timer // of the period; nil outside of one
	}
}

// warn logs a line, unless there have been too many of its kind. Attrs is called only for a line
// that is logged.
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

// endPeriod says how many lines of a kind were left out, and begins to count anew.
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

// flush says what was left out until now. Afterwards no timer is started.
func (p *peerLines) flush() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for kind := range peerLineKinds {
		p.endPeriod(kind)
	}
}
