// SPDX-License-Identifier: Apache-2.0

// Package identity says which server is at the other end of a connection, as that server has said
// in its settings.
package identity

import (
	"crypto/rand"
	"encoding/hex"
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// incarnationSize is the size of the random number that identifies a server, in bytes.
const incarnationSize = 16

// NewIncarnation returns the number of one run of a server.
func NewIncarnation() []byte {
	b := make([]byte, incarnationSize)
	_, _ = rand.Read(b) // it never fails
	return b
}

// Agent returns the agent that a peer names in its settings. If that is own, as of most peers, it
// returns own, which saves a string.
func Agent(l *wire.Limits, own string) string {
	if string(l.Agent) == own {
		return own
	}
	return text.Clip(string(l.Agent), wire.MaxName) // it is kept until the connection ends
}

// A Server is the identity of a server. It does not change. The zero Server has said nothing.
type Server struct {
	Keys keyscope.Scope // its memory of idempotency keys

	incarnation string // empty if the server did not say
	services    string // encoded; empty if the server did not say
}

// Of returns the identity in the settings of a server. If it equals last, the identity on the
// previous connection, Of returns last.
func Of(l *wire.Limits, last *Server) *Server {
	keep := time.Duration(min(l.KeyKeep, math.MaxInt64/1000)) * time.Microsecond
	if last != nil && last.Keys.Keep == keep && last.incarnation == string(l.Incarnation) && last.services == string(l.Services) && last.Keys.Name == string(l.KeyScope) {
		return last
	}
	return &Server{incarnation: string(l.Incarnation), services: string(l.Services), Keys: keyscope.Scope{Name: string(l.KeyScope), Keep: keep}}
}

// Same reports whether last is of the same incarnation. Last is nil before the first connection,
// for which Same returns true.
func (id *Server) Same(last *Server) bool { return last == nil || last.incarnation == id.incarnation }

// MayBe reports whether the server may be the instance that a registry lists with an incarnation
// under a service. It accepts a restarted server, because the record in the registry may be older
// than the restart, but that server must have the service. Both parameters may be empty.
func (id *Server) MayBe(incarnation, service string) bool {
	if incarnation == "" || id.incarnation == "" || incarnation == hex.EncodeToString([]byte(id.incarnation)) {
		return true
	}
	return service == "" || id.serves(service)
}

// serves reports whether the server may have methods of service. It is true if the server listed
// the service or no services at all.
func (id *Server) serves(service string) bool {
	if id.services == "" {
		return true
	}
	found := false
	// the encoding was checked before
	_ = wire.EachService([]byte(id.services), func(name []byte) { found = found || string(name) == service })
	return found
}
