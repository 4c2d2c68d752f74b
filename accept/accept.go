// SPDX-License-Identifier: Apache-2.0

// Package accept decides by its IP address who may connect. Its filters run right after a
// connection is accepted, before a byte of it is read, whatever protocol it will speak:
//
//	office, err := accept.Allow("10.0.0.0/8", "::1")
//	server := yodel.NewServer(&yodel.ServerOptions{Accept: office})
//
// Deny refuses addresses, and Rate limits how often connections are accepted, in all and from each
// address. All combines filters.
//
// An address says where a connection comes from, not who sent it: behind a proxy it is the
// proxy's, and it replaces no authentication.
package accept

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Allow returns a filter that lets in the addresses that a pattern matches, and nobody else. A
// pattern is an IP address, "192.0.2.1" or "::1", or a range of them, "10.0.0.0/8" or
// "2001:db8::/32". An IPv4 address is the same in its IPv6 form, "::ffff:192.0.2.1", and in no
// other range of IPv6: "::/0" is all of IPv6 and nothing of IPv4.
//
// A connection without an IP address (through memory, over a unix socket) is refused: no pattern
// lets it in. Without patterns everyone is.
//
// The filter is used concurrently. Its error says who was refused and why.
func Allow(patterns ...string) (func(net.Conn) error, error) {
	rules, err := parse(patterns)
	if err != nil {
		return nil, err
	}
	allowed := strings.Join(patterns[:min(len(patterns), 3)], ", ") // an error is no place for a thousand
	if len(patterns) > 3 {
		allowed = fmt.Sprintf("%s and %d more", allowed, len(patterns)-3)
	}
	return func(conn net.Conn) error {
		ip, ok := addressOf(conn)
		if !ok {
			return fmt.Errorf("%s is no IP address, and only %q is allowed", describe(conn), allowed)
		}
		if match(rules, ip) < 0 {
			return fmt.Errorf("%s is not allowed, only %q is", ip, allowed)
		}
		return nil
	}, nil
}

// Deny returns a filter that refuses the addresses that a pattern matches, and lets in everyone
// else, a connection without an IP address too: no pattern is about it. Patterns are those of
// Allow.
//
// The filter is used concurrently. Its error says who was refused and by which pattern.
func Deny(patterns ...string) (func(net.Conn) error, error) {
	rules, err := parse(patterns)
	if err != nil {
		return nil, err
	}
	return func(conn net.Conn) error {
		if ip, ok := addressOf(conn); ok {
			if i := match(rules, ip); i >= 0 {
				return fmt.Errorf("%s is denied by %q", ip, patterns[i])
			}
		}
		return nil
	}, nil
}

func parse(patterns []string) ([]netip.Prefix, error) {
	rules := make([]netip.Prefix, len(patterns))
	for i, pattern := range patterns {
		rule, err := parsePattern(pattern)
		if err != nil {
			return nil, fmt.Errorf("accept pattern %q: %w", pattern, err)
		}
		rules[i] = rule
	}
	return rules, nil
}

// parsePattern reads an address or a range, IPv4 in its IPv6 form as IPv4.
func parsePattern(pattern string) (netip.Prefix, error) {
	if !strings.Contains(pattern, "/") {
		ip, err := netip.ParseAddr(pattern)
		if err != nil {
			return netip.Prefix{}, errors.New(`want an IP address or a range like "10.0.0.0/8"`)
		}
		if ip.Zone() != "" {
			return netip.Prefix{}, errors.New("an address with a zone cannot be matched")
		}
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	rule, err := netip.ParsePrefix(pattern)
	if err != nil {
		return netip.Prefix{}, errors.New(`want an IP address or a range like "10.0.0.0/8"`)
	}
	if rule != rule.Masked() { // a slip: which of the two was meant is anyone's guess
		return netip.Prefix{}, fmt.Errorf("an address inside a range: write %q or %q", rule.Masked(), rule.Addr())
	}
	if rule.Addr().Is4In6() { // at least 96 bits, or it would not be masked
		rule = netip.PrefixFrom(rule.Addr().Unmap(), rule.Bits()-96)
	}
	return rule, nil
}

// match returns the index of the first rule for ip, or -1.
func match(rules []netip.Prefix, ip netip.Addr) int {
	for i, rule := range rules {
		if rule.Contains(ip) {
			return i
		}
	}
	return -1
}

// addressOf returns the peer's IP address, if it has one: IPv4 as such, and without a zone, which
// no pattern has.
func addressOf(conn net.Conn) (netip.Addr, bool) {
	addr := conn.RemoteAddr()
	if addr == nil {
		return netip.Addr{}, false
	}
	var ip netip.Addr
	if known, ok := addr.(interface{ AddrPort() netip.AddrPort }); ok { // TCP and UDP
		ip = known.AddrPort().Addr()
	} else if pair, err := netip.ParseAddrPort(addr.String()); err == nil { // a transport's own type
		ip = pair.Addr()
	}
	return ip.Unmap().WithZone(""), ip.IsValid()
}

func describe(conn net.Conn) string {
	if addr := conn.RemoteAddr(); addr != nil {
		return fmt.Sprintf("%s %q", addr.Network(), addr)
	}
	return "an unknown address"
}
