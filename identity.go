// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"crypto/rand"
	"encoding/hex"
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// incarnationSize is how many random bytes tell one server from every other.
const incarnationSize = 16

func newIncarnation() []byte {
	b := make([]byte, incarnationSize)
	_, _ = rand.Read(b) // it never fails
	return b
}

// A serviceList caches the services of a server as its settings list them.
type serviceList struct {
	methods *map[string]*method // from which it was made
	encoded []byte
}

// encodedServices returns the services of the server for its settings: nil, which says nothing, if
// there are none or more than fit. It may be called concurrently.
func (s *Server) encodedServices() []byte {
	methods := s.methods.Load()
	if list := s.serviceList.Load(); list != nil && list.methods == methods {
		return list.encoded
	}
	list := &serviceList{methods: methods}
	services := s.services()
	for _, name := range services {
		list.encoded = wire.AppendService(list.encoded, name)
	}
	if len(services) > wire.MaxServices || len(list.encoded) > wire.MaxServicesBytes {
		list.encoded = nil
	}
	if s.methods.Load() == methods { // else the services may be newer than methods
		s.serviceList.Store(list)
	}
	return list.encoded
}

// A serverIdentity is what a server said of itself when a connection to it began. It does not
// change.
type serverIdentity struct {
	incarnation string        // empty if the server did not say
	services    string        // encoded; empty if the server did not say
	keyScope    string        // of the memory of idempotency keys; empty if the server remembers none
	keyKeep     time.Duration // how long that remembers a key
}

// identityOf returns what the peer's settings say of it. It returns last, what the server at the
// same address said before, if that is the same.
func identityOf(l *wire.Limits, last *serverIdentity) *serverIdentity {
	keep := time.Duration(min(l.KeyKeep, math.MaxInt64/1000)) * time.Microsecond
	if last != nil && last.keyKeep == keep && last.incarnation == string(l.Incarnation) && last.services == string(l.Services) && last.keyScope == string(l.KeyScope) {
		return last
	}
	return &serverIdentity{incarnation: string(l.Incarnation), services: string(l.Services), keyScope: string(l.KeyScope), keyKeep: keep}
}

// name returns the incarnation as records of instances have it.
func (id *serverIdentity) name() string { return hex.EncodeToString([]byte(id.incarnation)) }

// serves reports whether the server may have methods of service: it said so, or did not say which
// services it has.
func (id *serverIdentity) serves(service string) bool {
	if id.services == "" {
		return true
	}
	found := false
	// it was read before
	_ = wire.EachService([]byte(id.services), func(name []byte) { found = found || string(name) == service })
	return found
}
