// SPDX-License-Identifier: Apache-2.0

package rate

import (
	"context"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/internal/caller"
)

// A Key identifies the limit that a call counts for. Calls with equal keys share one. Fields may be
// combined, as in
//
//	By: func(_ context.Context, call *yodel.Call) rate.Key { return rate.Key{Method: call.Method, Tenant: call.Tenant} }
type Key struct {
	Method, Tenant string
	// Addr is the address of a peer.
	Addr netip.Addr
	// Name is any other text. Error messages do not show it.
	Name string
}

// Method gives each method its own limit. Methods that do not exist have keys too.
func Method(_ context.Context, call *yodel.Call) Key { return Key{Method: call.Method} }

// Tenant gives each tenant its own limit. The caller names its tenant, unless a middleware above
// has checked it.
func Tenant(_ context.Context, call *yodel.Call) Key { return Key{Tenant: call.Tenant} }

// User gives each caller whose identity package auth has verified its own limit. Put the limit
// below auth.Check or auth.Certificate. Calls without an identity count for their address: see
// Peer.
func User(ctx context.Context, call *yodel.Call) Key {
	if user, _ := caller.From(ctx); user != "" {
		return Key{Name: user}
	}
	return Peer(ctx, call)
}

// Peer gives each network address its own limit on a server, regardless of the port. For IPv6 it
// uses the network of 64 bits, because one host can have any number of addresses in it. Peers
// without an address, such as those of package mem, share a limit.
func Peer(_ context.Context, call *yodel.Call) Key {
	peer := call.Peer()
	if peer == nil {
		return Key{}
	}
	var addr netip.Addr
	switch a := peer.Addr.(type) {
	case *net.TCPAddr:
		addr, _ = netip.AddrFromSlice(a.IP)
	case *net.UDPAddr:
		addr, _ = netip.AddrFromSlice(a.IP)
	}
	if addr = addr.Unmap(); addr.Is6() {
		network, _ := addr.WithZone("").Prefix(64) // an IPv6 address has more than 64 bits
		addr = network.Addr()
	}
	return Key{Addr: addr}
}

// Metadata gives each value of a metadata key its own limit. Calls without the key share one.
func Metadata(name string) func(context.Context, *yodel.Call) Key {
	return func(_ context.Context, call *yodel.Call) Key { return Key{Name: call.Metadata[name]} }
}

// hash returns the hash of a key.
func (k *Key) hash(seed maphash.Seed) uint64 {
	h := uint64(0)
	for _, part := range [...]string{k.Method, k.Tenant, k.Name} {
		h = mix(h, maphash.String(seed, part))
	}
	if k.Addr.IsValid() {
		bytes := k.Addr.As16()
		h = mix(h, maphash.Bytes(seed, bytes[:]))
	}
	return h
}

// mix combines two hashes in this order.
func mix(h, next uint64) uint64 {
	h = (h<<25 | h>>39) * 0x9e3779b97f4a7c15 // an odd factor loses no information
	return h ^ next
}

// String returns a text that is different for each key. Stores use it.
func (k *Key) String() string {
	var b strings.Builder
	for _, part := range [...]string{k.Method, k.Tenant, k.Name} {
		fmt.Fprintf(&b, "%d:%s,", len(part), part)
	}
	if k.Addr.IsValid() {
		b.WriteString(k.Addr.String())
	}
	return b.String()
}

// whose describes the key in an error message.
func (k *Key) whose() string {
	var of []string
	if k.Method != "" {
		of = append(of, "of this method")
	}
	if k.Tenant != "" {
		of = append(of, fmt.Sprintf("of the tenant %.40q", k.Tenant))
	}
	if k.Addr.IsValid() {
		of = append(of, "of "+k.Addr.String())
	}
	if k.Name != "" {
		of = append(of, "of this caller")
	}
	if len(of) == 0 {
		return ""
	}
	return " " + strings.Join(of, " ")
}
