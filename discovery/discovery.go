// SPDX-License-Identifier: Apache-2.0

// Package discovery has what clients and servers share with registries: the record of an instance,
// and the interfaces of resolvers and registrars.
package discovery

import (
	"context"
	"slices"
	"strings"
	"time"
)

// A Resolver knows the instances of one service. It may have a method Describe, which tells
// clients what else it can do: see yodel.Description.
type Resolver interface {
	// Watch calls update with the whole set of instances, at once and after every change, until ctx
	// ends. The receiver does not change the slice. If Watch returns an error, the set is no longer
	// known: the client keeps using the last set and calls Watch again after a pause. Ctx carries a
	// function that adds events to the live data of the client: see introspect.NoteOf.
	Watch(ctx context.Context, update func([]Instance)) error
}

// A Registrar makes instances known to resolvers. Its methods are called concurrently. It may have
// a method Describe, which tells servers what else it can do: see yodel.Description.
type Registrar interface {
	// Announce writes in as the record for in.Addr under service, replacing any earlier record. The
	// registry may drop the record if it is not announced again within ttl, so that the record of a
	// server that died disappears. Servers announce three times per ttl. Announce must not rely on
	// an earlier write, because the registry may have lost its data. If the record is unchanged,
	// Announce may renew it without writing it. Announce returns when ctx ends.
	//
	// A registry may let operators set the state and the weight of instances. Announce then writes
	// the operator's values in place of the values of in: see yodel.Description.Overrides.
	Announce(ctx context.Context, service string, in Instance, ttl time.Duration) error
	// Withdraw removes the record for addr under service. It leaves the record of another server,
	// with another incarnation. Withdrawing an unknown instance succeeds.
	Withdraw(ctx context.Context, service, addr string) error
}

// An Instance is one running server of a service, as a registry lists it. A registry stores it as
// JSON that people can read. Slices and maps in an Instance must not be changed.
type Instance struct {
	// Addr is the address of the server, in the form that the client's transport dials: HOST:PORT
	// for TCP. If it is empty, the server announces the address at which it listens, or that of the
	// host's default route if it listens at all addresses.
	Addr string `json:"addr"`
	// Protocols are the protocols that the server speaks, for example "yodel" or "netrpc". A client
	// uses "yodel" if Protocols contains it, and otherwise the first of yodel.ClientOptions.Wires
	// that Protocols contains. If Protocols contains none of them, the client leaves the instance
	// out. Empty means yodel. A server with yodel.ServerOptions.Protocols announces "yodel" and
	// their names, unless its Instance sets the list.
	Protocols []string `json:"protocols,omitempty"`
	// Group is a part of the fleet that clients can select, for example a team's servers or a
	// canary. Several groups are separated by commas.
	Group string `json:"group,omitempty"`
	// Version is the version of the service, which clients can select.
	Version string `json:"version,omitempty"`
	// Weight is the instance's share of the calls, for balancers that use weights. 0 means 1.
	Weight int `json:"weight,omitempty"`
	// Zone is the data center or rack in which the server runs, for balancers that prefer their own
	// zone.
	Zone string `json:"zone,omitempty"`
	// Latitude and Longitude locate the server, in degrees. If both are 0, the location is unknown.
	Latitude  float64 `json:"latitude,omitempty"`
	Longitude float64 `json:"longitude,omitempty"`
	// State is empty or "active" if the instance receives calls, and "inactive" if it receives
	// none.
	State string `json:"state,omitempty"`
	// Tags are words by which clients can select instances.
	Tags []string `json:"tags,omitempty"`
	// Metadata describes the instance further.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Started is when the server began to serve.
	Started time.Time `json:"started,omitzero"`
	// Incarnation identifies one run of the server's process. The server sets it. A client compares
	// it with the incarnation that the connected server sends, to detect that another server now
	// listens at Addr.
	Incarnation string `json:"incarnation,omitempty"`
	// CallRate is how many calls the server executed per second when the record was written, and
	// Inflight is how many calls were in flight. Servers update the record when these values have
	// changed a lot.
	CallRate float64 `json:"callRate,omitempty"`
	Inflight int     `json:"inflight,omitempty"`
}

// Inactive is the State of an instance that receives no calls.
const Inactive = "inactive"

// A Fixed is a Resolver of instances that do not change.
type Fixed []Instance

// Static returns the instances at a list of addresses. An address may begin with the name of the
// protocol that its server speaks, as in "netrpc://10.0.0.7:1234": see Instance.Protocols.
func Static(addrs ...string) Fixed {
	instances := make(Fixed, len(addrs))
	for i, addr := range addrs {
		instances[i].Addr = addr
		// the transport explains what is wrong with tcp://
		if protocol, rest, ok := strings.Cut(addr, "://"); ok && protocol != "tcp" {
			instances[i].Addr, instances[i].Protocols = rest, []string{protocol}
		}
	}
	return instances
}

// Watch implements Resolver.
func (f Fixed) Watch(ctx context.Context, update func([]Instance)) error {
	update(slices.Clone(f))
	<-ctx.Done()
	return nil
}
