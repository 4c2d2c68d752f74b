// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"crypto/rand"
	"encoding/hex"
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// incarnationSize is the size of the random number that identifies a server, in bytes.
const incarnationSize = 16

func newIncarnation() []byte {
	b := make([]byte, incarnationSize)
	_, _ = rand.Read(b) // it never fails
	return b
}

// A serviceList caches the services of a server in the encoding of its settings.
type serviceList struct {
	methods *map[string]*method // the methods from which the list was made
	encoded []byte
}

// encodedServices returns the services of the server for its settings. It returns nil, which means
// unknown, if the server has no service, or if the services do not fit in the settings. It may be
// called concurrently.
func (s *Server) encodedServices() []byte {
	methods := s.methods.Load()
	if list := s.serviceList.Load(); list != nil && list.methods == methods {
		return list.encoded
	}
	list := &serviceList{methods: methods}
	services := s.Services()
	for _, name := range services {
		list.encoded = wire.AppendService(list.encoded, name)
	}
	if len(services) > wire.MaxServices || len(list.encoded) > wire.MaxServicesBytes {
		list.encoded = nil
	}
	if s.methods.Load() == methods { // otherwise the services may be newer than methods
		s.serviceList.Store(list)
	}
	return list.encoded
}

// A serverIdentity is the identity that a server has sent in its settings. It does not change.
type serverIdentity struct {
	incarnation string        // empty if the server did not say
	services    string        // encoded; empty if the server did not say
	keyScope    string        // the scope of its memory of idempotency keys; empty if it remembers none
	keyKeep     time.Duration // how long the memory keeps a key
}

// identityOf returns the identity in the settings of a server. If it equals last, the identity of
// the previous connection, identityOf returns last.
func identityOf(l *wire.Limits, last *serverIdentity) *serverIdentity {
	keep := time.Duration(min(l.KeyKeep, math.MaxInt64/1000)) * time.Microsecond
	if last != nil && last.keyKeep == keep && last.incarnation == string(l.Incarnation) && last.services == string(l.Services) && last.keyScope == string(l.KeyScope) {
		return last
	}
	return &serverIdentity{incarnation: string(l.Incarnation), services: string(l.Services), keyScope: string(l.KeyScope), keyKeep: keep}
}

// name returns the incarnation in the encoding of Instance.Incarnation.
func (id *serverIdentity) name() string { return hex.EncodeToString([]byte(id.incarnation)) }

// serves reports whether the server may have methods of service. It is true if the server listed
// the service or no services at all.
func (id *serverIdentity) serves(service string) bool {
	if id.services == "" {
		return true
	}
	found := false
	// the encoding was checked before
	_ = wire.EachService([]byte(id.services), func(name []byte) { found = found || string(name) == service })
	return found
}
