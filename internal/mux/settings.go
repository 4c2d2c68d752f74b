// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"math"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file handles the beginning of a connection: both sides send their settings.

func (lt *lifetime) onSettings(payload []byte) bool {
	c := lt.c
	var l wire.Limits
	if err := wire.ParseSettings(payload, &l); err != nil {
		lt.breach("broken settings: " + err.Error())
		return false
	}
	if !lt.greeting.CompareAndSwap(true, false) {
		lt.breach("settings came twice")
		return false
	}
	c.mu.Lock()
	lt.helloBy = 0
	c.callsOut.setWindowLocked(l.MaxOpen, l.MaxOpenBytes)
	c.callsOut.window.SetUpperBounds(max(l.MaxOpen, l.MostOpen), max(l.MaxOpenBytes, l.MostOpenBytes))
	if l.MaxMethods > 0 {
		c.callsOut.maxNum = int32(min(l.MaxMethods, math.MaxUint16))
	}
	if l.StreamWindow > 0 {
		c.streams.peerStream = int32(min(max(l.StreamWindow, minStreamWindow), maxStreamWindow))
	}
	if c.quota.share != nil {
		c.quota.share.Greet()
	}
	c.callsOut.admitNextLocked()
	c.mu.Unlock()
	if c.cfg.Hello == nil {
		return true
	}
	if refusal := c.cfg.Hello(c, &l); refusal != nil {
		lt.refuse(refusal, refusal)
		return false
	}
	return true
}
