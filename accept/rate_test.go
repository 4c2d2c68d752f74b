// SPDX-License-Identifier: Apache-2.0

package accept_test

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/accept"
)

// admitted returns how many of n connections from an address a filter accepts.
func admitted(filter func(net.Conn) error, addr net.Addr, n int) (count int) {
	for range n {
		if filter(peer{addr: addr}) == nil {
			count++
		}
	}
	return count
}

func TestARateHoldsForEachAddressAndForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &accept.Rate{PerSecond: 20, Burst: 30, PerAddress: 2, AddressBurst: 5}
		first, second := admitted(r.Accept, tcp("203.0.113.1"), 1000), admitted(r.Accept, tcp("203.0.113.2"), 1000)
		if first != 5 || second != 5 {
			t.Errorf("at once, %d and %d connections were accepted from two addresses, want 5 of each", first, second)
		}
		if err := r.Accept(peer{addr: tcp("203.0.113.1")}); err == nil || !strings.Contains(err.Error(), "203.0.113.1") {
			t.Errorf("the error does not name the address: %v", err)
		}
		for range 10 {
			time.Sleep(time.Second)
			if n := admitted(r.Accept, tcp("203.0.113.1"), 100); n != 2 {
				t.Errorf("in a second, %d connections were accepted, want 2", n)
			}
		}
		time.Sleep(time.Minute)
		all := 0
		for i := range 100 {
			all += admitted(r.Accept, tcp(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}).String()), 1)
		}
		if all != 30 {
			t.Errorf("at once, %d connections were accepted from 100 addresses, want 30", all)
		}
		if got, want := r.Stats(), (accept.RateStats{Accepted: 60, RefusedByAddress: 2*995 + 1 + 10*98, RefusedByAll: 70}); got != want {
			t.Errorf("the statistics are %+v, want %+v", got, want)
		}
	})
}

func TestARateCountsNetworksOfIPv6(t *testing.T) {
	r := &accept.Rate{PerAddress: 0.001, AddressBurst: 1}
	for _, test := range []struct {
		from net.Addr
		want bool
	}{
		{tcp("2001:db8:1:2::1"), true},
		{tcp("2001:db8:1:2:3::9"), false}, // the same network
		{tcp("2001:db8:1:3::1"), true},
		{tcp("203.0.113.1"), true},
		{tcp("::ffff:203.0.113.1"), false}, // the same address
		{address("203.0.113.2:443"), true},
		{&net.UnixAddr{Name: "@", Net: "unix"}, true},
		{&net.UnixAddr{Name: "@", Net: "unix"}, true}, // it has no IP address
	} {
		if err := r.Accept(peer{addr: test.from}); (err == nil) != test.want {
			t.Errorf("%v: %v", test.from, err)
		}
	}
}

// 1,000 addresses are above their limit. 10,000 others connect at their leisure, and none of them
// is refused in error. 300,000 addresses take no memory.
func TestAFloodFromManyAddressesRefusesNoOtherAddress(t *testing.T) {
	at := func(a, i int) net.Addr {
		return &net.TCPAddr{IP: net.IPv4(byte(a), byte(i>>16), byte(i>>8), byte(i))}
	}
	synctest.Test(t, func(t *testing.T) {
		r := &accept.Rate{PerAddress: 1, AddressBurst: 10}
		for i := range 1000 {
			if n := admitted(r.Accept, at(10, i), 20); n < 8 || n > 12 { // they share a few places
				t.Errorf("%d connections of one address were accepted, want 10", n)
			}
		}
		refused := 0
		for i := range 10_000 {
			refused += 1 - admitted(r.Accept, at(11, i), 1)
		}
		if refused > 5 {
			t.Errorf("%d of 10,000 connections were refused in error", refused)
		}
	})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	r := &accept.Rate{PerAddress: 1}
	for i := range 300_000 {
		_ = r.Accept(peer{addr: at(12, i)}) // refused or not
	}
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	runtime.KeepAlive(r)
}

func TestARateOfNothingAcceptsAll(t *testing.T) {
	r := &accept.Rate{}
	if n := admitted(r.Accept, tcp("203.0.113.1"), 1000); n != 1000 {
		t.Errorf("%d of 1000 connections were accepted", n)
	}
}

func TestAllAsksUpToTheFirstFilterThatRefuses(t *testing.T) {
	var asked string
	filter := func(name string, err error) func(net.Conn) error {
		return func(net.Conn) error { asked += name; return err }
	}
	refusal := errors.New("no")
	if err := accept.All(filter("a", nil), filter("b", refusal), filter("c", nil))(peer{}); !errors.Is(err, refusal) || asked != "ab" {
		t.Errorf("the filters %s were asked, and the error is %v", asked, err)
	}
	if err := accept.All()(peer{}); err != nil {
		t.Error(err)
	}
}
