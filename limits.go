// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Limits bounds what a connection may cost. It is the same on both sides; zero values have the
// defaults given. A very large value, such as math.MaxInt64, lifts a limit.
type Limits struct {
	// MaxMessage is the largest message accepted, in bytes as it is sent. Default 16 MiB.
	MaxMessage int
	// MaxDecompressed is the largest body accepted after decompression, in bytes. Default 16 MiB.
	MaxDecompressed int
	// MaxMetadata is the largest metadata sent or accepted, in bytes with keys and lengths: that of
	// a request, of a reply, and of a connection. Default and maximum 16 KiB.
	MaxMetadata int
	// MaxPairs is how many pairs of key and value such metadata may have. A pair of a few bytes
	// takes about 100 as an entry of a map, so MaxMetadata alone would let a peer fill 26 times the
	// memory that it sends. Default 128.
	MaxPairs int
	// MaxOpen is how many requests may be open at once on one connection in any case, those being
	// executed and those waiting for their reply. Callers beyond it wait. A server lets each
	// connection have its share of ServerOptions.MaxOpen, which is less when there are many.
	// Default 16,384.
	MaxOpen int
	// MaxMemory is how many bytes the peer of one connection can make this side hold: requests with
	// their fields, and 1 KiB for each, without the stack of its handler; messages that have not
	// come whole, of which what has come counts, and some room; replies that wait to be sent;
	// windows of streams; metadata; decompressed bodies; and the names of methods. What a handler
	// makes of a message is not counted. Half of it may be the bodies of open requests: the peer is
	// told, and its callers wait. Beyond MaxMemory a request is refused, certainly not executed,
	// and the messages of a stream fail. A connection gets less than MaxMemory when the memory of
	// all connections is scarce: see ServerOptions.MaxMemory. Default 64 MiB, or eight times
	// MaxMessage if that is set and makes more. Callers who often send more than two messages of 16
	// MiB at once over one connection should raise it on the server: the third waits, and others
	// behind it.
	MaxMemory int
	// MaxUnsent is how many bytes may wait to be written on one connection. When a peer does not
	// read its replies, no more of its requests are read, and no more handlers are begun while as
	// many bytes of replies are stuck behind these. Default 4 MiB.
	MaxUnsent int
	// StreamWindow is how many bytes may come on a stream before they are consumed, in the
	// beginning: it grows, up to 4 MiB, for a receiver that has to wait because of it, and is 4 KiB
	// when the streams of the connection have half of MaxMemory already. A message larger than that
	// is let in beside it, for a receiver that waits for it. Default 64 KiB, at least 4 KiB.
	StreamWindow int
	// MaxMethods is how many combinations of method, codec and compressor one connection may use.
	// Default 1024.
	MaxMethods int
	// KeepAlive is the silence after which a peer is asked for a sign of life; after twice that the
	// connection is closed. While bytes move on it, it is not silent, also when a large message
	// takes longer than that. But a peer that sends less than 4 KiB a second in twice that, while a
	// request of its own, or a message of a stream that it has opened, has not come whole, loses
	// that: it must not hold memory by pings alone. Default 15 s.
	KeepAlive time.Duration
	// Handshake is how long the peer may take to say that it speaks the protocol. Default 10 s.
	Handshake time.Duration
	// IdleTimeout is how long a connection may be without an open request, until it is closed:
	// then, or up to a quarter later. No call is lost by that, and a client connects again when it
	// has a call to make. Default never.
	IdleTimeout time.Duration
	// MaxAge is how long a connection is used, more or less a tenth, so that those which were made
	// together do not end together. Calls that are open then are finished on it, and later ones go
	// over a new one. Default never.
	MaxAge time.Duration
	// Polling is how long a side looks for the next message before it sleeps, while one lone call
	// after another has been coming that soon: being woken up would take longer than the call. An
	// idle connection costs nothing, and a side with a single processor never polls. Default 50 µs;
	// negative: never, it sleeps at once.
	Polling time.Duration
}

const maxMetadata = 16 << 10

// withDefaults returns l with defaults for zero values.
func (l *Limits) withDefaults() Limits {
	return Limits{
		MaxMessage:      orDefault(l.MaxMessage, 16<<20),
		MaxDecompressed: orDefault(l.MaxDecompressed, 16<<20),
		MaxMetadata:     min(orDefault(l.MaxMetadata, maxMetadata), maxMetadata),
		MaxPairs:        orDefault(l.MaxPairs, 128),
		MaxOpen:         min(orDefault(l.MaxOpen, 16<<10), wire.MaxSlots),
		MaxMemory:       orDefault(l.MaxMemory, max(64<<20, 8*min(l.MaxMessage, math.MaxInt/64))),
		MaxUnsent:       orDefault(l.MaxUnsent, 4<<20),
		StreamWindow:    orDefault(l.StreamWindow, 64<<10),
		MaxMethods:      orDefault(l.MaxMethods, 1024),
		KeepAlive:       orDefault(l.KeepAlive, 15*time.Second),
		Handshake:       orDefault(l.Handshake, 10*time.Second),
		IdleTimeout:     min(max(l.IdleTimeout, 0), forever),
		MaxAge:          min(max(l.MaxAge, 0), forever),
		Polling:         polling(l.Polling),
	}
}

func (l *Limits) mux() mux.Limits {
	return mux.Limits{
		MaxMessage: l.MaxMessage, MaxOpen: l.MaxOpen, MaxOpenBytes: max(l.MaxMemory/2, 1), MaxMemory: l.MaxMemory, MaxMethods: l.MaxMethods,
		MaxUnsent: l.MaxUnsent, StreamWindow: l.StreamWindow, KeepAlive: l.KeepAlive, Handshake: l.Handshake, IdleTimeout: l.IdleTimeout, MaxAge: l.MaxAge,
		Polling: max(l.Polling, 0),
	}
}

// polling returns how long a side polls; a negative value stays one, so that it is not taken for
// unset.
func polling(d time.Duration) time.Duration {
	if d < 0 {
		return d
	}
	return orDefault(d, 50*time.Microsecond)
}

// forever is the longest duration of an option, a hundred years. Sums of a few such durations and
// times do not overflow.
const forever = 100 * 365 * 24 * time.Hour

// orDefault returns v, or def when v is zero or negative. A value that stands for no limit is
// lowered to one with which sums do not overflow.
func orDefault[T int | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	switch v := any(v).(type) {
	case time.Duration:
		return T(min(v, forever))
	case int:
		return T(min(v, math.MaxInt/8))
	}
	return v
}
