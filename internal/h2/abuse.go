// SPDX-License-Identifier: Apache-2.0

package h2

// This file bounds what a client can make this side do for nothing. A client that goes beyond a
// bound gets GOAWAY with ENHANCE_YOUR_CALM.
//
// Handlers that run are bounded, too, whether their streams were reset or not: see
// Config.MaxStreams.

const (
	// freeResets is how many streams may be reset at the beginning. Each reply whose request was
	// complete, and each frame of DATA that ends a part of a reply, permit resetsPerReply more, and
	// each tick resetsPerTick, up to mostResets. So a client whose deadlines are short can reset
	// all that it asks of a slow server. A search box that cancels the previous query can do so,
	// too.
	freeResets, resetsPerReply, resetsPerTick, mostResets = 5000, 1000, 1000, 10000
	// freeRefusals is how many requests beyond MaxStreams may be refused before the client has
	// acknowledged the SETTINGS.
	freeRefusals = 1000
	// oldAge is after how many ticks the reset of a stream is not counted. A client that gives up a
	// slow request makes no extra work.
	oldAge = 2
	// mostControls is how many frames that carry nothing of a request may come. Each frame of a
	// request permits controlsPerFrame more, up to mostControls, and so does each tick. Each frame
	// of a reply permits controlsPerReply more, because clients send WINDOW_UPDATE and PING for it.
	// A short frame that the window has cut permits none.
	mostControls, controlsPerFrame, controlsPerReply = 10000, 100, 4
	// mostContinuations is how many CONTINUATION frames a header block may have.
	mostContinuations = 16
)

// calm is the fault of a client that goes beyond a bound.
func calm(what string) *Fault { return &Fault{code: enhanceYourCalm, what: what} }

// spendResetLocked counts a stream that was reset before its reply was complete, by the client or
// because of what the client has sent.
func (c *Conn) spendResetLocked(s *Stream) *Fault {
	if s != nil && c.ticks.Load()-s.born >= oldAge {
		return nil
	}
	if c.resets--; c.resets < 0 {
		return calm("the client resets too many streams")
	}
	return nil
}

// earnResetsLocked permits n more resets.
func (c *Conn) earnResetsLocked(n int) { c.resets = min(c.resets+n, mostResets) }

// spendControl counts a frame that carries nothing of a request.
func (rd *reader) spendControl() *Fault {
	in := &rd.c.in
	if in.controls--; in.controls >= 0 {
		return nil
	}
	now := rd.c.ticks.Load()
	rd.c.mu.Lock()
	earned := rd.c.send.earned
	rd.c.send.earned = 0
	rd.c.mu.Unlock()
	in.controls = min(mostControls, earned+int(now-in.refilled)*controlsPerFrame) - 1
	if in.refilled = now; in.controls < 0 {
		return calm("the client sends too many frames that carry nothing")
	}
	return nil
}

// earnControl counts HEADERS, or DATA that was stored. DATA of a stream that has ended earns
// nothing.
func (rd *reader) earnControl() {
	rd.c.in.controls = min(rd.c.in.controls+controlsPerFrame, mostControls)
}
