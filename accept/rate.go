// SPDX-License-Identifier: Apache-2.0

package accept

import (
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A Rate limits how often connections are accepted: all together, and those from each address. Its
// method Accept is a filter:
//
//	rate := &accept.Rate{PerSecond: 500, PerAddress: 10}
//	server := yodel.NewServer(&yodel.ServerOptions{Accept: rate.Accept})
//
// A refused connection costs no handshake, because nothing is read from it or written to it. The
// server logs refused connections, at most ten lines in ten seconds, and tells ServerOptions.OnConn
// of each.
//
// All its state takes 512 KiB, however many addresses connect. An address has one bucket of tokens
// in each of four tables, at places that nobody can foresee, and is refused if all four are empty.
// So an address is refused in error only if others have emptied all four: about one in a million
// does so while 500 addresses are above their limit, and one in 80,000 while 1,000 are.
//
// One Rate is a single limit, even if several servers use it. It must not be copied, and its fields
// must not be changed after the first connection.
type Rate struct {
	// PerSecond is how many connections are accepted in a second. Zero means no limit.
	PerSecond float64
	// Burst is how many connections are accepted at once after a pause. Default PerSecond, at least
	// 1.
	Burst int
	// PerAddress is how many connections from one IP address are accepted in a second. An IPv6
	// network of 64 bits is one address. Connections without an IP address have no such limit. Zero
	// means no limit.
	PerAddress float64
	// AddressBurst is how many connections from one address are accepted at once after a pause.
	// Default ten times PerAddress, at least 10, because the clients of one program connect
	// together.
	AddressBurst int

	accepted, byAll, byAddress atomic.Uint64

	once   sync.Once
	start  time.Time
	all    bucket
	tables *[rows]table // nil without PerAddress
}

// RateStats counts the decisions of a Rate.
type RateStats struct {
	Accepted         uint64 // connections that were accepted
	RefusedByAddress uint64 // refused because of PerAddress
	RefusedByAll     uint64 // refused because of PerSecond
}

// Stats returns how many connections have been accepted and refused.
func (r *Rate) Stats() RateStats {
	return RateStats{r.accepted.Load(), r.byAddress.Load(), r.byAll.Load()}
}

// errAll is the error of a connection beyond PerSecond. A flood makes no texts.
var errAll = errors.New("too many new connections at a time: accept.Rate.PerSecond")

// Accept is a filter for yodel.ServerOptions.Accept. A connection that the limit of its address
// refuses does not count for the limit of all. Accept may be called concurrently.
func (r *Rate) Accept(conn net.Conn) error {
	r.once.Do(r.begin)
	now := time.Since(r.start)
	if r.tables != nil {
		if ip, ok := addressOf(conn); ok && !r.takeOf(ip, now) {
			r.byAddress.Add(1)
			return fmt.Errorf("too many new connections from %s at a time: accept.Rate.PerAddress", ip)
		}
	}
	if r.PerSecond > 0 && !r.all.take(now, interval(r.PerSecond), burst(r.Burst, r.PerSecond, 1)) {
		r.byAll.Add(1)
		return errAll
	}
	r.accepted.Add(1)
	return nil
}

func (r *Rate) begin() {
	r.start = time.Now()
	if r.PerAddress <= 0 {
		return
	}
	r.tables = new([rows]table)
	for i := range r.tables {
		r.tables[i].seed = maphash.MakeSeed()
	}
}

// takeOf takes a token of an address from each table, and reports whether one of them had any.
func (r *Rate) takeOf(ip netip.Addr, now time.Duration) (taken bool) {
	if ip.Is6() {
		network, _ := ip.Prefix(64) // an IPv6 address has more than 64 bits
		ip = network.Addr()
	}
	every, most := interval(r.PerAddress), burst(r.AddressBurst, 10*r.PerAddress, 10)
	for i := range r.tables {
		t := &r.tables[i]
		if t.buckets[maphash.Comparable(t.seed, ip)%columns].take(now, every, most) {
			taken = true
		}
	}
	return taken
}

// The size of the tables.
const (
	rows    = 4
	columns = 16 << 10
)

type table struct {
	seed    maphash.Seed
	buckets [columns]bucket
}

// A bucket is a token bucket: the time at which it is full again. The zero value is full. It is the
// generic cell rate algorithm.
type bucket struct{ full atomic.Int64 }

// take takes a token, and reports whether there was one. A token comes back in each interval of
// every. The bucket holds most tokens.
func (b *bucket) take(now, every time.Duration, most int64) bool {
	for {
		full := b.full.Load()
		next := max(full, int64(now)) + int64(every)
		if next-int64(now) > most*int64(every) {
			return false
		}
		if b.full.CompareAndSwap(full, next) {
			return true
		}
	}
}

// interval returns the time between two connections at a rate.
func interval(perSecond float64) time.Duration {
	const longest = time.Hour
	return time.Duration(max(min(float64(time.Second)/perSecond, float64(longest)), 1))
}

// burst returns the number of connections at once: chosen, or else usual, at least least.
func burst(chosen int, usual float64, least int64) int64 {
	const most = 1_000_000 // times the longest interval, it is a time.Duration
	if chosen > 0 {
		return min(int64(chosen), most)
	}
	return max(int64(min(usual, most)), least)
}

// All returns a filter that accepts a connection if all of the filters do. It calls them in order,
// up to the first that refuses.
func All(filters ...func(net.Conn) error) func(net.Conn) error {
	return func(conn net.Conn) error {
		for _, filter := range filters {
			if err := filter(conn); err != nil {
				return err
			}
		}
		return nil
	}
}
