// SPDX-License-Identifier: Apache-2.0

package accept_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/accept"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestFiltersMatchAddresses(t *testing.T) {
	tests := []struct {
		patterns string // separated by spaces
		peer     net.Addr
		matches  bool
	}{
		{"192.0.2.1", tcp("192.0.2.1"), true},
		{"192.0.2.1", tcp("192.0.2.2"), false},
		{"192.0.2.1", tcp("::ffff:192.0.2.1"), true},
		{"::ffff:192.0.2.1", tcp("192.0.2.1"), true},
		{"10.0.0.0/8", tcp("10.255.255.255"), true},
		{"10.0.0.0/8", tcp("11.0.0.0"), false},
		{"10.0.0.0/8", tcp("::ffff:10.1.2.3"), true},
		{"::ffff:10.0.0.0/104", tcp("10.1.2.3"), true},
		{"::ffff:10.0.0.0/104", tcp("11.1.2.3"), false},
		{"0.0.0.0/0", tcp("203.0.113.9"), true},
		{"0.0.0.0/0", tcp("2001:db8::1"), false},
		{"::/0", tcp("2001:db8::1"), true},
		{"::/0", tcp("203.0.113.9"), false},
		{"::1", tcp("::1"), true},
		{"::1", tcp("127.0.0.1"), false},
		{"2001:db8::/32", tcp("2001:db8:ffff::"), true},
		{"2001:db8::/32", tcp("2001:db9::"), false},
		{"fe80::/10", &net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, true},
		{"10.0.0.0/8 ::1", tcp("::1"), true},
		{"10.0.0.0/8 ::1", tcp("10.0.0.1"), true},
		{"10.0.0.0/8 ::1", tcp("192.0.2.1"), false},
		{"", tcp("192.0.2.1"), false},
		{"10.0.0.0/8", &net.UDPAddr{IP: net.ParseIP("10.0.0.1"), Port: 1}, true},
		{"10.0.0.0/8", address("10.0.0.1:443"), true}, // a transport's own type
		{"10.0.0.0/8", address("[::ffff:10.0.0.1]:443"), true},
		{"0.0.0.0/0 ::/0", address("pricing/7"), false},
		{"0.0.0.0/0 ::/0", &net.UnixAddr{Name: "@", Net: "unix"}, false},
		{"0.0.0.0/0 ::/0", nil, false},
	}
	for _, test := range tests {
		patterns := strings.Fields(test.patterns)
		allow, deny := filters(t, patterns...)
		if err := allow(peer{addr: test.peer}); (err == nil) != test.matches {
			t.Errorf("Allow(%q) with %v: got %v", patterns, test.peer, err)
		}
		if err := deny(peer{addr: test.peer}); (err != nil) != test.matches {
			t.Errorf("Deny(%q) with %v: got %v", patterns, test.peer, err)
		}
	}
}

func TestErrorsSayWhoAndWhy(t *testing.T) {
	allow, deny := filters(t, "10.0.0.0/8", "::1")
	many, _ := filters(t, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
	tests := []struct {
		filter func(net.Conn) error
		peer   net.Addr
		want   string
	}{
		{allow, tcp("::ffff:192.0.2.1"), `192.0.2.1 is not allowed, only "10.0.0.0/8, ::1" is`},
		{allow, address("pricing/7"), `mem "pricing/7" is no IP address, and only "10.0.0.0/8, ::1" is allowed`},
		{allow, nil, `an unknown address is no IP address, and only "10.0.0.0/8, ::1" is allowed`},
		{many, tcp("192.0.2.1"), `192.0.2.1 is not allowed, only "10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more" is`},
		{deny, tcp("10.1.2.3"), `10.1.2.3 is denied by "10.0.0.0/8"`},
		{deny, tcp("::1"), `::1 is denied by "::1"`},
	}
	for _, test := range tests {
		err := test.filter(peer{addr: test.peer})
		if err == nil || err.Error() != test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
	}
}

func TestBadPatternsAreErrors(t *testing.T) {
	for pattern, want := range map[string]string{
		"":                    "want an IP address",
		"localhost":           "want an IP address",
		"10.*":                "want an IP address",
		"10.0.0.256":          "want an IP address",
		"10.0.0.0/33":         "want an IP address",
		"10.0.0.0/":           "want an IP address",
		"10.0.0.1:80":         "want an IP address",
		"10.0.0.1,::1":        "want an IP address",
		"fe80::1%eth0":        "zone",
		"10.0.0.5/8":          `write "10.0.0.0/8" or "10.0.0.5"`,
		"::ffff:10.0.0.5/104": `write "::ffff:10.0.0.0/104" or "::ffff:10.0.0.5"`,
		"::ffff:0.0.0.0/95":   "write",
	} {
		for name, filter := range map[string]func(...string) (func(net.Conn) error, error){"Allow": accept.Allow, "Deny": accept.Deny} {
			if _, err := filter("10.0.0.0/8", pattern); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s(%q): got %v, want an error with %q", name, pattern, err, want)
			}
		}
	}
}

// FuzzPattern checks that a pattern is an error, or matches what is in its range and nothing else.
func FuzzPattern(f *testing.F) {
	for _, pattern := range []string{"10.0.0.0/8", "::1", "::ffff:10.0.0.0/104", "::ffff:192.0.2.1", "::/0", "0.0.0.0/0", "fe80::1%eth0", "10.0.0.5/8", "x"} {
		f.Add(pattern, []byte{10, 0, 0, 1})
		f.Add(pattern, netip.MustParseAddr("::ffff:10.0.0.1").AsSlice())
	}
	f.Fuzz(func(t *testing.T, pattern string, ip []byte) {
		from, ok := netip.AddrFromSlice(ip)
		if !ok {
			return
		}
		allow, err := accept.Allow(pattern)
		deny, denyErr := accept.Deny(pattern)
		if (err == nil) != (denyErr == nil) {
			t.Fatalf("%q: Allow returned %v, Deny %v", pattern, err, denyErr)
		}
		if err != nil {
			return
		}
		conn := peer{addr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 1))}
		allowed, denied := allow(conn) == nil, deny(conn) != nil
		if allowed != denied {
			t.Errorf("%q and %v: allowed is %v, denied is %v", pattern, from, allowed, denied)
		}
		_, want, err := net.ParseCIDR(pattern) // the older parser of the standard library
		if err != nil {
			one := net.ParseIP(pattern)
			want = &net.IPNet{IP: one, Mask: net.CIDRMask(128, 128)}
			if four := one.To4(); four != nil {
				want = &net.IPNet{IP: four, Mask: net.CIDRMask(32, 32)}
			}
		}
		inside := want.Contains(from.Unmap().AsSlice()) && (want.IP.To4() != nil) == from.Unmap().Is4()
		if allowed != inside {
			t.Errorf("%q and %v: allowed is %v, package net says %v", pattern, from, allowed, inside)
		}
	})
}

func BenchmarkAllow(b *testing.B) {
	allow, err := accept.Allow("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1")
	if err != nil {
		b.Fatal(err)
	}
	conn := peer{addr: tcp("::1")}
	b.ReportAllocs()
	for b.Loop() {
		if err := allow(conn); err != nil {
			b.Fatal(err)
		}
	}
}

func filters(t *testing.T, patterns ...string) (allow, deny func(net.Conn) error) {
	t.Helper()
	allow, err := accept.Allow(patterns...)
	if err != nil {
		t.Fatal(err)
	}
	deny, err = accept.Deny(patterns...)
	if err != nil {
		t.Fatal(err)
	}
	return allow, deny
}

// A peer is a connection of which only the remote address is asked.
type peer struct {
	net.Conn
	addr net.Addr
}

func (p peer) RemoteAddr() net.Addr { return p.addr }

func tcp(ip string) net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(ip), Port: 40_000}
}

// An address is that of a transport that is not in package net.
type address string

func (a address) Network() string { return "mem" }
func (a address) String() string  { return string(a) }
