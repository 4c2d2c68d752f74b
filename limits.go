// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/defaults"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Limits limits the resources that one connection may use. Clients and servers use the same type. A
// field that is zero has the default given. A very large value, such as math.MaxInt64, lifts a
// limit.
type Limits struct {
	// MaxMessage is the largest message accepted, in bytes as sent, that is after compression.
	// Default 16 MiB.
	MaxMessage int
	// MaxDecompressed is the largest body accepted after decompression, in bytes. The default
	// depends on the size of the compressed body: 100 times that size, but at least 64 KiB and at
	// most 4 MiB. A sender does not compress a body that its own MaxDecompressed would refuse.
	// Raise MaxDecompressed on both sides for larger bodies, or for bodies that compress better.
	MaxDecompressed int
	// MaxMetadata is the largest metadata that is sent or accepted with a request, a reply or a
	// connection, in bytes including keys and lengths. Default and maximum 16 KiB.
	MaxMetadata int
	// MaxPairs is how many key and value pairs such metadata may have. MaxMetadata alone is not
	// enough: a pair of a few bytes takes about 100 bytes as a map entry, so a peer could make this
	// side use 26 times the memory that it sends. Default 128.
	MaxPairs int
	// MaxOpen is how many requests may be in flight on one connection, executing or waiting.
	// Callers beyond that wait. A server grants each connection a share of ServerOptions.MaxOpen,
	// which is less if there are many connections, and at most one for each 8 KiB of MaxMemory, for
	// the stacks of goroutines. Default 16,384.
	MaxOpen int
	// MaxMemory is how many bytes the peer of one connection can make this side hold. It covers:
	// requests with their fields, plus 1 KiB for each, without the stack of its handler; the
	// received part of incomplete messages, plus some spare room; replies that wait to be sent;
	// stream windows; metadata; decompressed bodies; and the names of methods. It does not cover
	// the values that a codec makes of a body, and memory that a handler allocates.
	//
	// Half of MaxMemory is for the bodies of open requests. The peer learns that limit, and its
	// callers wait. Beyond MaxMemory, this side refuses a request, which is then certainly not
	// executed, and the messages of a stream fail. A connection gets less than MaxMemory when the
	// memory of all connections is scarce: see ServerOptions.MaxMemory.
	//
	// Default 64 MiB, or eight times MaxMessage if MaxMessage is set and the product is larger. If
	// callers often send more than two messages of 16 MiB at once over one connection, raise
	// MaxMemory on the server. Otherwise the third message waits, and so do the calls behind it.
	MaxMemory int
	// MaxUnsent is how many bytes may wait to be written on one connection. While more bytes wait,
	// because the peer does not read its replies, this side reads no further requests from the
	// peer. While MaxUnsent further bytes of replies wait behind them, this side starts no further
	// handlers for the peer. A call waits until fewer bytes wait to be written, or fails if its
	// NoWait is set. Default 4 MiB.
	MaxUnsent int
	// StreamWindow is the initial flow-control window of a stream: how many bytes may arrive before
	// they are consumed. The window grows up to 4 MiB for a receiver that has to wait because of
	// it. It is 4 KiB while the streams of the connection hold half of MaxMemory. A message larger
	// than the window is accepted for a receiver that waits for it. Default 64 KiB, at least 4 KiB.
	StreamWindow int
	// MaxMethods is how many combinations of method, codec and compressor one connection may use.
	// Default 1024.
	MaxMethods int
	// KeepAlive is how long a connection may be silent before this side sends a ping, or 16 times
	// as long for one of HTTP/2 without requests. This side closes it after KeepAlive more. One
	// large message is not silence while its bytes move. If a peer sends less than 4 KiB per second
	// for twice KeepAlive, this side drops its incomplete requests and messages of streams. So it
	// cannot hold memory with pings alone. Default 15 s.
	KeepAlive time.Duration
	// Handshake is how long the peer may take to complete the protocol's handshake. Default 10 s.
	Handshake time.Duration
	// IdleTimeout is how long a connection may be without an open request. It is closed then, or up
	// to a quarter of that time later. No call is lost, and a client connects again for its next
	// call. Default never.
	IdleTimeout time.Duration
	// MaxAge is how long a connection is used, with a jitter of a tenth, so that connections made
	// together do not end together. Calls in flight finish on the old connection, and later calls
	// use a new one. Default never.
	MaxAge time.Duration
	// Polling is how long a side polls for the next message before it sleeps. It polls only while
	// single calls follow each other within that time, because waking up would take longer than the
	// call. An idle connection is not polled, and a process with a single processor never polls.
	// Default 50 µs; a negative value turns polling off.
	Polling time.Duration

	// ratio is how many times its size a body may have after decompression. It is 0 if the user has
	// set MaxDecompressed.
	ratio int
}

const maxMetadata = 16 << 10

// The default of Limits.MaxDecompressed. Text and JSON of clients compress 5 to 30 times, and gzip
// at most 1032 times.
const (
	maxDecompressed = 4 << 20
	maxRatio        = 100
)

func (l *Limits) decompressed() unpack.Limits {
	return unpack.Limits{Most: l.MaxDecompressed, Ratio: l.ratio}
}

// withDefaults returns l with defaults for zero values.
func (l *Limits) withDefaults() Limits {
	filled := Limits{
		MaxMessage:      defaults.Positive(l.MaxMessage, 16<<20),
		MaxDecompressed: defaults.Positive(l.MaxDecompressed, maxDecompressed),
		MaxMetadata:     min(defaults.Positive(l.MaxMetadata, maxMetadata), maxMetadata),
		MaxPairs:        defaults.Positive(l.MaxPairs, 128),
		MaxOpen:         min(defaults.Positive(l.MaxOpen, 16<<10), wire.MaxSlots),
		MaxMemory:       defaults.Positive(l.MaxMemory, max(64<<20, 8*min(l.MaxMessage, math.MaxInt/64))),
		MaxUnsent:       defaults.Positive(l.MaxUnsent, 4<<20),
		StreamWindow:    defaults.Positive(l.StreamWindow, 64<<10),
		MaxMethods:      defaults.Positive(l.MaxMethods, 1024),
		KeepAlive:       defaults.Positive(l.KeepAlive, 15*time.Second),
		Handshake:       defaults.Positive(l.Handshake, 10*time.Second),
		IdleTimeout:     min(max(l.IdleTimeout, 0), defaults.Forever),
		MaxAge:          min(max(l.MaxAge, 0), defaults.Forever),
		Polling:         cmp.Or(l.Polling, 50*time.Microsecond), // negative: none
	}
	if l.MaxDecompressed <= 0 {
		filled.ratio = maxRatio
	}
	nesting.AllowBytes(max(filled.MaxMessage, filled.MaxDecompressed))
	return filled
}

func (l *Limits) mux() mux.Limits {
	return mux.Limits{
		MaxMessage: l.MaxMessage, MaxOpen: l.MaxOpen, MaxOpenBytes: max(l.MaxMemory/2, 1), MaxMemory: l.MaxMemory, MaxMethods: l.MaxMethods,
		MaxUnsent: l.MaxUnsent, StreamWindow: l.StreamWindow, KeepAlive: l.KeepAlive, Handshake: l.Handshake, IdleTimeout: l.IdleTimeout, MaxAge: l.MaxAge,
		Polling: max(l.Polling, 0),
	}
}

func (l *Limits) metadata() metadata.Limits {
	return metadata.Limits{Bytes: l.MaxMetadata, Pairs: l.MaxPairs}
}

// compressAbove is the default size from which bodies are compressed, in bytes.
const compressAbove = 1024
