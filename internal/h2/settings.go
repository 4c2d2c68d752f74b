// SPDX-License-Identifier: Apache-2.0

package h2

import "encoding/binary"

// appendOwnSettingsLocked appends the settings of this side, and opens the window of the
// connection.
func (c *Conn) appendOwnSettingsLocked() {
	c.send.out = appendSettings(c.send.out,
		setting{maxConcurrentStreams, uint32(c.cfg.MaxStreams)}, // #nosec G115 -- it is an int of a limit
		setting{initialWindowSize, uint32(c.cfg.StreamWindow)},  // #nosec G115 -- at most mostWindow
		setting{maxHeaderListSize, uint32(c.cfg.MaxHeaderList)}) // #nosec G115 -- it is an int of a limit
	if by := c.cfg.ConnWindow - defaultWindow; by > 0 {
		c.send.out = appendWindow(c.send.out, 0, by)
	}
}

// settings takes SETTINGS of the client, and acknowledges them. The blocks behind the ACK obey
// them.
func (rd *reader) settings(f *frame) *Fault {
	c := rd.c
	if f.has(flagAck) {
		c.in.acked = true
		return nil
	}
	c.settled.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	initial := c.send.initial
	for p := f.payload; len(p) > 0; p = p[6:] {
		value := binary.BigEndian.Uint32(p[2:])
		switch binary.BigEndian.Uint16(p) {
		case headerTableSize:
			c.send.encoder.SetTableSize(int(min(value, 1<<16)))
		case enablePush:
			if value > 1 {
				return &Fault{code: protocolError, what: "SETTINGS_ENABLE_PUSH is not 0 or 1"}
			}
		case initialWindowSize:
			if value > mostWindow {
				return &Fault{code: flowControlError, what: "SETTINGS_INITIAL_WINDOW_SIZE is too large"}
			}
			initial = int64(value)
		case maxFrameSize: // this side sends no larger frames than the least that it can be
			if value < maxFrame || value >= 1<<24 {
				return &Fault{code: protocolError, what: "SETTINGS_MAX_FRAME_SIZE is out of its range"}
			}
		}
	}
	if err := c.send.setInitialLocked(initial); err != nil {
		return err
	}
	c.send.out = appendSettingsAck(c.send.out)
	return nil
}

// setInitialLocked changes the credit of all streams (RFC 9113, section 6.9.2).
func (w *sending) setInitialLocked(initial int64) *Fault {
	if initial == w.initial {
		return nil
	}
	w.initial = initial
	if w.highest+initial > mostWindow {
		w.highest = 0
		for s := range w.c.streams.all {
			w.highest = max(w.highest, s.delta)
		}
		if w.highest+initial > mostWindow {
			return &Fault{code: flowControlError, what: "SETTINGS_INITIAL_WINDOW_SIZE makes a window too large"}
		}
	}
	if w.stalled > 0 {
		for s := range w.c.streams.all {
			w.queueLocked(s)
		}
		w.resumeLocked()
	}
	return nil
}
