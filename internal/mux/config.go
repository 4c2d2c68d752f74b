// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"time"

	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/shares"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Limits says what one side of a connection accepts, and how it behaves. MaxOpen and MaxOpenBytes
// also bound this side's own requests, in addition to the peer's limits.
type Limits struct {
	MaxMessage   int // bytes of one message as sent
	MaxOpen      int // requests open at once
	MaxOpenBytes int // bytes of their messages
	MaxMemory    int // bytes that the peer can make this side hold in all; 0 means unlimited
	MaxMethods   int // method numbers
	MaxUnsent    int // bytes waiting to be written, beyond which this side stops reading
	// Bytes that the peer may send on a stream before this side consumes them. 0 means the default
	// of the specification.
	StreamWindow int

	// This side pings a peer that was silent for this long. If the peer remains silent for the same
	// time again, it counts as dead. 0 disables keepalive.
	KeepAlive time.Duration
	Handshake time.Duration // limit for the arrival of the peer's preface and settings
	// the connection is closed after this time without an open request; 0 means never
	IdleTimeout time.Duration
	// the connection is drained at this age, plus or minus a tenth; 0 means never
	MaxAge time.Duration
	// how long a reader polls before it sleeps, see package socket; 0 means never
	Polling time.Duration
}

// Config holds the settings and the functions that the owner of connections provides. Several
// connections share one Config, and nothing changes it.
type Config struct {
	Limits

	// OwnOpen and OwnOpenBytes bound this side's own requests, in place of MaxOpen and
	// MaxOpenBytes. 0 leaves MaxOpen or MaxOpenBytes in force.
	OwnOpen      int
	OwnOpenBytes int

	Metadata []byte // sent with the settings
	Agent    string // sent with the settings

	// A side with services describes itself in its settings with the next three fields, see
	// wire.Limits. Services returns the list of services. Keys returns the scope of the key memory,
	// and how long the memory keeps a key. Services and Keys may be nil. NewOf calls them when a
	// connection begins, so several goroutines may call them at the same time. They must not run
	// user code.
	Incarnation []byte
	Services    func() []byte
	Keys        func(c *Conn) (scope string, keep time.Duration)

	// Caller is the name under which this side calls. It may be empty.
	Caller []byte

	// Bind returns the Target for a method number of the peer. Bind is nil when this side has no
	// services. The reader goroutine calls Bind. The binding aliases the read buffer.
	Bind func(c *Conn, b *wire.Binding) (Target, wire.Info)
	// Hello receives the peer's settings before any of the peer's requests is served. The settings
	// alias the read buffer. A refusal ends the connection.
	Hello func(c *Conn, peer *wire.Limits) *Refusal
	// Learned receives the peer's information about the Method with a handle and a generation,
	// which this side has called.
	Learned func(c *Conn, handle int, generation uint32, info wire.Info)
	// Unusable is called when no more requests can be sent, because the peer drains the connection
	// or the connection has ended. It is called before the calls on the connection fail, so that
	// they can be sent on another connection.
	Unusable func(c *Conn)
	// Ended is called once, after the connection has ended. Err is the reason. It is never nil.
	Ended func(c *Conn, err error)

	Runtime *Runtime // nil selects the Runtime of the process
	// bounds what all connections hold together; nil applies only each connection's Limits
	Memory *memory.Limit
	Pool   *Pool         // runs the handlers that are not short
	Watch  *inline.Watch // watches the handlers that run on reader goroutines
	// bounds the peers' open requests together; nil applies only each connection's Limits
	Budget *shares.Budget
}

// A bound is the Target that a method number of the peer stands for.
type bound struct {
	target Target
	id     uint32 // of the Method frame
	cost   int32  // in bytes of memory
	kind   uint64
}

func (cfg *Config) ownOpen() int      { return cmp.Or(max(cfg.OwnOpen, 0), cfg.MaxOpen) }
func (cfg *Config) ownOpenBytes() int { return cmp.Or(max(cfg.OwnOpenBytes, 0), cfg.MaxOpenBytes) }

// mostOrphans is how many orphans a server may have: a quarter of the requests that may be open.
// See package orphans.
func (cfg *Config) mostOrphans() int {
	most := cfg.MaxOpen
	if cfg.Budget != nil {
		most = cfg.Budget.Total()
	}
	return max(most/4, 1)
}

// A Refusal ends a connection with a code. The code, ID and message are sent to the peer.
type Refusal struct {
	Code    uint16
	ID      string
	Message string
}

func (r *Refusal) Error() string { return r.Message }
