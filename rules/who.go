// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/auth"
)

// This file decides whether the caller of a call is in the scope of a rule: by its address, and by
// what the server has verified of it.

// parseNetwork reads an IP address or a range of them. An IPv4 address in its IPv6 form is one of
// IPv4.
func parseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("%.40q is not an IP address or a range such as \"10.0.0.0/8\"", text)
	case p != p.Masked():
		return p, fmt.Errorf("%q is an address inside a range: write %q or %q", text, p.Masked(), p.Addr())
	case p.Addr().Is4In6():
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}

// comesFrom reports whether the caller of a call is in a network. On a server, the address of the
// peer counts. On a client, one of the addresses of this machine has to be in the network.
func comesFrom(network netip.Prefix, call *yodel.Call, machine []netip.Addr) bool {
	if peer := call.Peer(); peer != nil {
		addr, ok := addressOf(peer.Addr)
		return ok && network.Contains(addr)
	}
	return slices.ContainsFunc(machine, network.Contains)
}

// addressOf returns the IP address of a peer, if it has one.
func addressOf(addr net.Addr) (netip.Addr, bool) {
	var ip netip.Addr
	if known, ok := addr.(interface{ AddrPort() netip.AddrPort }); ok { // TCP and UDP
		ip = known.AddrPort().Addr()
	} else if addr == nil {
		return ip, false
	} else if pair, err := netip.ParseAddrPort(addr.String()); err == nil { // a transport's own type
		ip = pair.Addr()
	}
	return ip.Unmap().WithZone(""), ip.IsValid()
}

// machineAddresses returns the IP addresses of this machine.
func machineAddresses() (all []netip.Addr) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil // rules by network do not concern the calls of this process
	}
	for _, addr := range addrs {
		if p, err := netip.ParsePrefix(addr.String()); err == nil {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}

// The names in Rule.Identity.
const (
	whoSubject     = "subject"
	whoTenant      = "tenant"
	whoCertificate = "certificate"
	whoSAN         = "san"
	whoSPIFFE      = "spiffe"
	whoClaim       = "claim:"
)

// identityNames are the names in Rule.Identity. NAME stands for any text.
var identityNames = []string{whoSubject, whoTenant, whoCertificate, whoSAN, whoSPIFFE, whoClaim + "NAME"}

// isIdentity reports whether Rule.Identity may have a name.
func isIdentity(name string) bool {
	claim, isClaim := strings.CutPrefix(name, whoClaim)
	return isClaim && claim != "" || slices.Contains(identityNames[:len(identityNames)-1], name)
}

// identifies reports whether the server has verified that the caller of a call has the identity of
// the rule. What a caller says about itself does not count.
func (r *Rule) identifies(ctx context.Context, call *yodel.Call) bool {
	if len(r.Identity) == 0 {
		return true
	}
	id := auth.IdentityFrom(ctx)
	if id == nil || call.Peer() == nil {
		id = &auth.Identity{}
	}
	cert := auth.CertificateOf(call)
	for name, pattern := range r.Identity {
		if !slices.ContainsFunc(factsOf(name, id, cert), func(fact string) bool { return fact != "" && like(pattern, fact) }) {
			return false
		}
	}
	return true
}

// factsOf returns what is known of a caller under a name. Cert is nil without a verified
// certificate.
func factsOf(name string, id *auth.Identity, cert *x509.Certificate) []string {
	switch claim, isClaim := strings.CutPrefix(name, whoClaim); {
	case isClaim:
		return textsOf(id.Claims[claim])
	case name == whoSubject:
		return []string{id.Subject}
	case name == whoTenant:
		return []string{id.Tenant}
	case cert == nil:
		return nil
	case name == whoCertificate:
		return []string{cert.Subject.String()}
	case name == whoSPIFFE:
		return []string{auth.SPIFFE(cert)}
	case name == whoSAN:
		all := slices.Concat(cert.DNSNames, cert.EmailAddresses)
		for _, ip := range cert.IPAddresses {
			all = append(all, ip.String())
		}
		for _, uri := range cert.URIs {
			all = append(all, uri.String())
		}
		return all
	}
	return nil
}

// textsOf returns the texts of a claim: one, or those of a list.
func textsOf(claim any) (all []string) {
	switch claim := claim.(type) {
	case nil:
	case []string:
		return claim
	case []any:
		for _, one := range claim {
			all = append(all, fmt.Sprint(one))
		}
	default:
		all = append(all, fmt.Sprint(claim))
	}
	return all
}

// unseen returns the parts of the scope that live data does not show. A preview assumes that all
// calls have them.
func (r *Rule) unseen() (parts []string) {
	if r.Tenant != "" {
		parts = append(parts, "tenant")
	}
	if len(r.Header) > 0 {
		parts = append(parts, "headers")
	}
	if r.Network != "" {
		parts = append(parts, "network")
	}
	if len(r.Identity) > 0 {
		parts = append(parts, "identity")
	}
	return parts
}

// concernsAll reports whether the scope of the rule is all calls of the service.
func (r *Rule) concernsAll() bool {
	return r.Method == "" && r.Caller == "" && len(r.unseen()) == 0
}

// who checks Network and Identity.
func (c *checker) who(r *Rule, k *kind) {
	if r.Network != "" {
		if _, err := parseNetwork(r.Network); err != nil {
			c.addf("YDL-R030", "network", "", "%v", err)
		}
	}
	if len(r.Identity) > maxHeader {
		c.addf("YDL-R006", "identity", "", "it has %d entries, want at most %d", len(r.Identity), maxHeader)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Identity)) {
		c.text("identity", name, true)
		c.text("identity."+name, r.Identity[name], true)
		if name != "" && !isIdentity(name) {
			c.word("identity", name, identityNames...)
		}
	}
	switch {
	case len(r.Identity) == 0 || k.sides == inPrograms:
	case !r.onServer():
		c.addf("YDL-R010", "identity", "use network, caller, tenant or header", "a %s rule acts in clients, and only the server knows the identity", k.name)
	case r.Side == "client":
		c.addf("YDL-R010", "side", "leave it empty", "only the server knows the identity")
	}
}
