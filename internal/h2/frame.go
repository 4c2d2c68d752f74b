// SPDX-License-Identifier: Apache-2.0

// Package h2 serves connections of HTTP/2 (RFC 9113).
package h2

import (
	"encoding/binary"
	"fmt"
)

// maxFrame is the longest payload of a frame in both directions. It is the default of
// SETTINGS_MAX_FRAME_SIZE, and the least that a peer may ask for.
const maxFrame = 16 << 10

const frameHeader = 9 // bytes

// A frameType is the type of a frame (RFC 9113, section 6).
type frameType byte

const (
	dataFrame frameType = iota
	headersFrame
	priorityFrame
	resetFrame
	settingsFrame
	pushFrame
	pingFrame
	goAwayFrame
	windowFrame
	continuationFrame
)

const (
	flagEndStream  = 1 // of DATA and HEADERS
	flagAck        = 1 // of SETTINGS and PING
	flagEndHeaders = 4
	flagPadded     = 8
	flagPriority   = 32
)

// An errorCode says why a stream or a connection has ended (RFC 9113, section 7).
type errorCode uint32

const (
	noError errorCode = iota
	protocolError
	internalError
	flowControlError
	settingsTimeout
	streamClosed
	frameSizeError
	refusedStream
	cancel
	compressionError
	connectError
	enhanceYourCalm
)

// A Fault is an error of the peer. It ends the connection, or the stream if there is one.
type Fault struct {
	code   errorCode
	stream uint32
	what   string
}

func (f *Fault) Error() string {
	if f.stream > 0 {
		return fmt.Sprintf("stream %d: %s (error code %d)", f.stream, f.what, f.code)
	}
	return fmt.Sprintf("%s (error code %d)", f.what, f.code)
}

// A frame is a frame that was read.
type frame struct {
	kind    frameType
	flags   byte
	stream  uint32
	payload []byte // in the buffer of the reader, without padding and priority
	size    int    // of the payload with these, which is what DATA counts in windows
}

func (f *frame) has(flag byte) bool { return f.flags&flag != 0 }

// next returns the first frame of buf, and how many bytes it takes there. n is zero if buf does not
// have the whole frame yet, or if the header of the frame is not valid. The header is checked
// before the payload has arrived. An error of the padding comes with n. Every error ends the
// connection.
func next(buf []byte) (f frame, n int, err *Fault) {
	if len(buf) < frameHeader {
		return f, 0, nil
	}
	size := int(buf[0])<<16 | int(buf[1])<<8 | int(buf[2])
	f = frame{kind: frameType(buf[3]), flags: buf[4], stream: binary.BigEndian.Uint32(buf[5:]) &^ (1 << 31), size: size}
	if err := f.check(); err != nil {
		return f, 0, err
	}
	if len(buf) < frameHeader+size {
		return f, 0, nil
	}
	f.payload = buf[frameHeader : frameHeader+size]
	return f, frameHeader + size, f.strip()
}

// check checks what the header of a frame says.
func (f *frame) check() *Fault {
	if f.size > maxFrame {
		return &Fault{code: frameSizeError, what: fmt.Sprintf("a frame has %d bytes, the limit is %d", f.size, maxFrame)}
	}
	ofStream, sizeOK := true, true
	switch f.kind {
	case dataFrame, headersFrame, continuationFrame:
	case priorityFrame:
		sizeOK = f.size == 5
	case resetFrame:
		sizeOK = f.size == 4
	case settingsFrame:
		ofStream, sizeOK = false, f.size%6 == 0 && (f.size == 0 || !f.has(flagAck))
	case pingFrame:
		ofStream, sizeOK = false, f.size == 8
	case goAwayFrame:
		ofStream, sizeOK = false, f.size >= 8
	case windowFrame:
		ofStream, sizeOK = f.stream > 0, f.size == 4
	case pushFrame:
		return &Fault{code: protocolError, what: "a client has sent PUSH_PROMISE"}
	default:
		return nil // RFC 9113, section 4.1: it is ignored
	}
	switch {
	case ofStream != (f.stream > 0):
		return &Fault{code: protocolError, what: fmt.Sprintf("a frame of type %d is on stream %d", f.kind, f.stream)}
	case !sizeOK:
		return &Fault{code: frameSizeError, what: fmt.Sprintf("a frame of type %d has %d bytes", f.kind, f.size)}
	}
	return nil
}

// strip removes padding and priority from the payload.
func (f *frame) strip() *Fault {
	if f.kind != dataFrame && f.kind != headersFrame {
		return nil
	}
	p := f.payload
	if f.has(flagPadded) {
		if len(p) == 0 || int(p[0]) >= len(p) {
			return &Fault{code: protocolError, what: "the padding of a frame is longer than the frame"}
		}
		p = p[1 : len(p)-int(p[0])]
	}
	if f.kind == headersFrame && f.has(flagPriority) {
		if len(p) < 5 {
			return &Fault{code: frameSizeError, what: "HEADERS has no room for its priority"}
		}
		p = p[5:]
	}
	f.payload = p
	return nil
}

func appendHeader(dst []byte, kind frameType, flags byte, stream uint32, size int) []byte {
	dst = append(dst, byte(size>>16), byte(size>>8), byte(size), byte(kind), flags) //nolint:gosec // three bytes of it
	return binary.BigEndian.AppendUint32(dst, stream)
}

// A setting is a parameter of a side of the connection (RFC 9113, section 6.5.2).
type setting struct {
	id    uint16
	value uint32
}

const (
	headerTableSize      = 1
	enablePush           = 2
	maxConcurrentStreams = 3
	initialWindowSize    = 4
	maxFrameSize         = 5
	maxHeaderListSize    = 6
)

func appendSettings(dst []byte, settings ...setting) []byte {
	dst = appendHeader(dst, settingsFrame, 0, 0, 6*len(settings))
	for _, s := range settings {
		dst = binary.BigEndian.AppendUint16(dst, s.id)
		dst = binary.BigEndian.AppendUint32(dst, s.value)
	}
	return dst
}

func appendSettingsAck(dst []byte) []byte { return appendHeader(dst, settingsFrame, flagAck, 0, 0) }

func appendPing(dst []byte, flags byte, data [8]byte) []byte {
	return append(appendHeader(dst, pingFrame, flags, 0, len(data)), data[:]...)
}

func appendWindow(dst []byte, stream uint32, by int) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(dst, windowFrame, 0, stream, 4), uint32(by)) // #nosec G115 -- windows have at most 31 bits
}

func appendReset(dst []byte, stream uint32, code errorCode) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(dst, resetFrame, 0, stream, 4), uint32(code))
}

func appendGoAway(dst []byte, last uint32, code errorCode, why string) []byte {
	dst = appendHeader(dst, goAwayFrame, 0, 0, 8+len(why))
	dst = binary.BigEndian.AppendUint32(dst, last)
	dst = binary.BigEndian.AppendUint32(dst, uint32(code))
	return append(dst, why...)
}
