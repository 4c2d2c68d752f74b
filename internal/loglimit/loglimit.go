// SPDX-License-Identifier: Apache-2.0

// Package loglimit writes the log lines of a server about what peers can cause at any rate: so many
// lines in a period, and then how many were left out.
package loglimit

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A kind is a kind of log line.
type kind int

// The kinds of lines.
const (
	refused kind = iota
	foreign
	breach
	silent
	transport
	hidden
	leftOut
	kinds
)

var texts = [kinds]string{
	refused:   "yodel: connection refused",
	foreign:   "yodel: a peer does not speak yodel",
	breach:    "yodel: a peer broke the protocol",
	silent:    "yodel: a peer connected and did not say what it speaks",
	transport: "yodel: the transport refused a peer",
	hidden:    "yodel: a call failed, and its caller does not see the error",
	leftOut:   "yodel: a reply was sent without a part of its metadata",
}

// At most perPeriod lines of each kind are logged in a period. The period begins with its
// first line.
const (
	perPeriod = 10
	period    = 10 * time.Second
)

// Lines logs faults of peers at a limited rate. Without Log it must not be used. It uses a constant
// amount of memory, and dropping a line takes constant time. It may be used concurrently.
type Lines struct {
	Log *slog.Logger // set before the first line

	hiddenErrors, leftOutPairs atomic.Uint64 // how many there were

	mu     sync.Mutex
	closed bool
	kinds  [kinds]struct {
		lines int         // in this period, including dropped ones
		end   *time.Timer // ends the period; nil outside of one
	}
}

// warn logs a line, unless there were too many of its kind. It calls attrs only for a line that it
// logs, and reports whether it did.
func (p *Lines) warn(of kind, attrs func() []any) (logged bool) {
	if logged = p.admit(of); logged {
		p.Log.Warn(texts[of], attrs()...)
	}
	return logged
}

func (p *Lines) admit(of kind) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := &p.kinds[of]
	k.lines++
	if k.end == nil && !p.closed {
		k.end = time.AfterFunc(period, func() { p.endPeriod(of) })
	}
	return k.lines <= perPeriod
}

// endPeriod logs how many lines of a kind were dropped, and resets the count.
func (p *Lines) endPeriod(of kind) {
	p.mu.Lock()
	k := &p.kinds[of]
	dropped := k.lines - perPeriod
	k.lines = 0
	if k.end != nil {
		k.end.Stop()
		k.end = nil
	}
	p.mu.Unlock()
	if dropped > 0 {
		p.Log.Warn(texts[of]+": more such lines were left out", "lines", dropped)
	}
}

// Flush ends all periods. Afterwards no timer is started.
func (p *Lines) Flush() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for of := range kinds {
		p.endPeriod(of)
	}
}
