// SPDX-License-Identifier: Apache-2.0

package loglimit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// LogRefused logs that the server has refused a connection.
func (p *Lines) LogRefused(peer string, err error) {
	p.warn(refused, func() []any { return []any{"peer", peer, "err", err} })
}

// LogSilent logs that the server has ended a connection whose peer has not said what it speaks.
func (p *Lines) LogSilent(peer string) {
	p.warn(silent, func() []any { return []any{"peer", peer, "id", catalogue.NoHandshake} })
}

// LogBreach logs that a peer has broken another protocol than yodel's own.
func (p *Lines) LogBreach(peer, protocol, what string) {
	p.warn(breach, func() []any {
		return []any{"peer", peer, "protocol", protocol, "what", what, "id", catalogue.ProtocolBroken}
	})
}

// LogEnded logs the end of a connection in yodel's own protocol, if the peer is at fault.
// OfTransport returns the message and the ID of err, if it is an error of a transport.
func (p *Lines) LogEnded(peer string, err error, ofTransport func(error) (message, id string, ok bool)) {
	preface, isPreface := errors.AsType[*mux.PrefaceError](err)
	broken, isBroken := errors.AsType[*mux.ProtocolError](err)
	switch {
	case isPreface:
		p.warn(foreign, func() []any {
			return []any{"peer", peer, "sent", firstbytes.Describe(preface.Got), "id", catalogue.ForeignServer}
		})
	case isBroken:
		p.warn(breach, func() []any { return []any{"peer", peer, "what", broken.What, "id", catalogue.ProtocolBroken} })
	case errors.Is(err, mux.ErrHandshake):
		p.LogSilent(peer)
	default:
		if message, id, ok := ofTransport(err); ok {
			p.warn(transport, func() []any {
				return []any{"peer", peer, "reason", strings.TrimPrefix(message, peer+": "), "id", id}
			})
		}
	}
}

// LogHidden counts and logs an error that a caller does not see, and tells the caller where its
// text is.
func (p *Lines) LogHidden(method string, err error) (where string) {
	n := p.hiddenErrors.Add(1)
	if !p.warn(hidden, func() []any { return []any{"hiddenError", n, "method", method, "err", err} }) {
		return "the server's log, which was full, has only some errors of these seconds"
	}
	return fmt.Sprintf("see hidden error %d in the server's log", n)
}

// LogLeftOut counts and logs a pair of the metadata of a reply that the caller does not get. The
// line lacks the value, which may be secret.
func (p *Lines) LogLeftOut(method, key, why string) {
	p.leftOutPairs.Add(1)
	p.warn(leftOut, func() []any { return []any{"method", method, "key", key, "reason", why} })
}

// PairsLeftOut returns how often LogLeftOut was called.
func (p *Lines) PairsLeftOut() uint64 { return p.leftOutPairs.Load() }
