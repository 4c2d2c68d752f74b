// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"strings"
	"testing"
)

// raw returns a frame.
func raw(kind frameType, flags byte, stream uint32, payload string) []byte {
	return append(appendHeader(nil, kind, flags, stream, len(payload)), payload...)
}

func TestFrames(t *testing.T) {
	for _, c := range []struct {
		name    string
		frame   []byte
		payload string
		size    int
	}{
		{"DATA", raw(dataFrame, flagEndStream, 1, "abc"), "abc", 3},
		{"DATA without bytes", raw(dataFrame, flagEndStream, 1, ""), "", 0},
		{"padded DATA", raw(dataFrame, flagPadded, 1, "\x02abc\x00\x00"), "abc", 6},
		{"DATA of padding alone", raw(dataFrame, flagPadded, 1, "\x02\x00\x00"), "", 3},
		{"HEADERS", raw(headersFrame, flagEndHeaders, 1, "\x82"), "\x82", 1},
		{"HEADERS with a priority", raw(headersFrame, flagPriority, 3, "\x80\x00\x00\x01\x10\x82"), "\x82", 6},
		{"padded HEADERS with a priority", raw(headersFrame, flagPriority|flagPadded, 3, "\x01\x00\x00\x00\x01\x10\x82\x00"), "\x82", 8},
		{"a padded frame of another type", raw(continuationFrame, flagPadded, 1, "\x09"), "\x09", 1},
		{"the longest frame", raw(dataFrame, 0, 1, strings.Repeat("x", maxFrame)), strings.Repeat("x", maxFrame), maxFrame},
		{"the reserved bit of the stream", append([]byte{0, 0, 1, 0, 0, 0x80, 0, 0, 1}, 'x'), "x", 1},
		{"an unknown type", raw(0x42, 0xff, 0, "abc"), "abc", 3},
		{"SETTINGS", appendSettings(nil, setting{initialWindowSize, 1 << 20}, setting{maxFrameSize, maxFrame}), "\x00\x04\x00\x10\x00\x00\x00\x05\x00\x00\x40\x00", 12},
		{"the ACK of SETTINGS", appendSettingsAck(nil), "", 0},
		{"PING", appendPing(nil, flagAck, [8]byte{7: 1}), "\x00\x00\x00\x00\x00\x00\x00\x01", 8},
		{"WINDOW_UPDATE", appendWindow(nil, 3, 258), "\x00\x00\x01\x02", 4},
		{"RST_STREAM", appendReset(nil, 3, cancel), "\x00\x00\x00\x08", 4},
		{"GOAWAY", appendGoAway(nil, 7, enhanceYourCalm, "calm"), "\x00\x00\x00\x07\x00\x00\x00\x0bcalm", 12},
	} {
		for cut := range len(c.frame) {
			if _, n, err := next(c.frame[:cut]); n != 0 || err != nil {
				t.Fatalf("%s: %d of %d bytes are a frame of %d: %v", c.name, cut, len(c.frame), n, err)
			}
		}
		f, n, err := next(append(bytes.Clone(c.frame), "more"...))
		if err != nil || n != len(c.frame) || string(f.payload) != c.payload || f.size != c.size {
			t.Errorf("%s: %q with %d bytes of %d, size %d: %v", c.name, f.payload, n, len(c.frame), f.size, err)
		}
	}
}

func TestMalformedFrames(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame []byte
		code  errorCode
	}{
		{"a frame that is too long, before its payload", appendHeader(nil, dataFrame, 0, 1, maxFrame+1), frameSizeError},
		{"an unknown frame that is too long", appendHeader(nil, 0x42, 0, 1, maxFrame+1), frameSizeError},
		{"DATA of the connection", raw(dataFrame, 0, 0, "x"), protocolError},
		{"HEADERS of the connection", raw(headersFrame, 0, 0, "x"), protocolError},
		{"CONTINUATION of the connection", raw(continuationFrame, 0, 0, "x"), protocolError},
		{"PRIORITY of the connection", raw(priorityFrame, 0, 0, "12345"), protocolError},
		{"RST_STREAM of the connection", raw(resetFrame, 0, 0, "1234"), protocolError},
		{"SETTINGS of a stream", raw(settingsFrame, 0, 1, ""), protocolError},
		{"PING of a stream", raw(pingFrame, 0, 1, "12345678"), protocolError},
		{"GOAWAY of a stream", raw(goAwayFrame, 0, 1, "12345678"), protocolError},
		{"PUSH_PROMISE", raw(pushFrame, 0, 1, "1234"), protocolError},
		{"a short PRIORITY", raw(priorityFrame, 0, 1, "1234"), frameSizeError},
		{"a long RST_STREAM", raw(resetFrame, 0, 1, "12345"), frameSizeError},
		{"half a setting", raw(settingsFrame, 0, 0, "123"), frameSizeError},
		{"an ACK with settings", raw(settingsFrame, flagAck, 0, "123456"), frameSizeError},
		{"a short PING", raw(pingFrame, 0, 0, "1234567"), frameSizeError},
		{"a short GOAWAY", raw(goAwayFrame, 0, 0, "1234567"), frameSizeError},
		{"a short WINDOW_UPDATE", raw(windowFrame, 0, 0, "123"), frameSizeError},
		{"padding of the whole frame", raw(dataFrame, flagPadded, 1, "\x01"), protocolError},
		{"padding without its length", raw(dataFrame, flagPadded, 1, ""), protocolError},
		{"a cut priority", raw(headersFrame, flagPriority, 1, "1234"), frameSizeError},
		{"padding in place of a priority", raw(headersFrame, flagPriority|flagPadded, 1, "\x02\x00\x00\x00\x00\x00\x00"), frameSizeError},
	} {
		if _, _, err := next(c.frame); err == nil || err.code != c.code {
			t.Errorf("%s: %v, want the code %d", c.name, err, c.code)
		}
	}
}

// A frame that is taken lies within the buffer, and what is left of its payload within the frame.
func FuzzFrames(f *testing.F) {
	f.Add(raw(headersFrame, flagPriority|flagPadded, 3, "\x01\x00\x00\x00\x01\x10\x82\x00"))
	f.Add(appendSettings(nil, setting{headerTableSize, 0}, setting{enablePush, 0}, setting{maxConcurrentStreams, 1}, setting{maxHeaderListSize, 9}))
	f.Fuzz(func(t *testing.T, buf []byte) {
		for {
			f, n, err := next(buf)
			if err != nil || n == 0 {
				return
			}
			if n != frameHeader+f.size || n > len(buf) || len(f.payload) > f.size {
				t.Fatalf("a frame takes %d of %d bytes, its payload has %d of %d", n, len(buf), len(f.payload), f.size)
			}
			buf = buf[n:]
		}
	})
}
