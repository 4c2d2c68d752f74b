// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/yodel-rpc/yodel"
)

// Ketama sends calls for which by returns the same number to the same endpoint (consistent
// hashing). All clients agree, because endpoints are placed by their addresses. A new endpoint
// takes its share of the keys from all others, and no other key moves. The keys of an endpoint that
// goes spread over all others. Shares follow the weights. When the mean weight changes, up to the
// same number of keys move in addition. If the call avoids the endpoint of its key, it goes to the
// next one on the ring, which is the same for all calls with this key.
//
// The algorithm is that of libketama (R. Jones, Last.fm, 2007). An endpoint of mean weight has 160
// points on a ring, and others have points in proportion to their weight. A key belongs to the next
// point. Shares differ by about 8% from the ideal. The points are not those of libketama, which are
// made with MD5. When the set changes, the ring is changed point by point.
func Ketama(by func(*yodel.Call) uint64) yodel.Balancer {
	if by == nil {
		panic("balance: Ketama with a nil function")
	}
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		weights := weightsOf(endpoints)
		old, ok := last.(*ketama)
		if ok && old.is(endpoints, weights) {
			return old
		} else if !ok {
			old = &ketama{}
		}
		p := &ketama{by: by, set: set{endpoints, weights}}
		p.change(old)
		return p
	}
}

// A set is the input of a picker. The next picker compares it with its own, because registries
// often report changes that do not matter here, such as load.
type set struct {
	endpoints []*yodel.Endpoint
	weights   []int64
}

func (s *set) is(endpoints []*yodel.Endpoint, weights []int64) bool {
	return slices.Equal(s.endpoints, endpoints) && slices.Equal(s.weights, weights)
}

type ketama struct {
	set

	by      func(*yodel.Call) uint64
	members members
	hashes  []uint64 // of the points, in ring order
	owners  []int32  // of the points: indices of members
}

// A member is an endpoint for consistent hashing. Its index in members does not change while it
// stays.
type member struct {
	ep     *yodel.Endpoint // nil for a free index
	addr   string
	hash   uint64 // of the address
	weight int64
	points int
}

type members []member

func membersOf(endpoints []*yodel.Endpoint) members {
	all := make(members, len(endpoints))
	for i, ep := range endpoints {
		all[i] = member{ep: ep, addr: ep.Addr(), hash: hashString(ep.Addr())}
	}
	return all
}

// A point of the ring belongs to a member. The probability that two of 800,000 points have the same
// hash is 2 to 100 million. Clients could then disagree about a key that hits it.
type point struct {
	hash  uint64
	owner int32
}

func (a point) compare(b point) int {
	if a.hash != b.hash {
		return cmp.Compare(a.hash, b.hash)
	}
	return cmp.Compare(a.owner, b.owner)
}

// sorted sorts points. It first distributes them to small heaps, because hashes are spread evenly.
// That takes a quarter of the time.
func sorted(points []point) []point {
	const few = 1024
	if len(points) < few {
		slices.SortFunc(points, point.compare)
		return points
	}
	shift := 64 - bits.Len64(uint64(len(points)/8))
	ends := make([]int, 1<<(64-shift))
	for _, pt := range points {
		ends[pt.hash>>shift]++
	}
	sum := 0
	for i, n := range ends { // where each heap begins, until it is dealt
		ends[i] = sum
		sum += n
	}
	dealt := make([]point, len(points))
	for _, pt := range points {
		end := &ends[pt.hash>>shift]
		dealt[*end] = pt
		*end++
	}
	begin := 0
	for _, end := range ends {
		slices.SortFunc(dealt[begin:end], point.compare)
		begin = end
	}
	return dealt
}

// pointsPerMember is how many points a member of mean weight has.
const pointsPerMember = 160

// change builds the ring from the old one.
func (p *ketama) change(old *ketama) {
	was := make(map[string]int, len(old.members))
	p.members = make(members, len(old.members), max(len(old.members), len(p.endpoints)))
	for i, m := range old.members {
		if m.ep != nil {
			was[m.addr] = i
		}
	}
	var joined []member
	total := int64(0)
	for _, w := range p.weights {
		total += w
	}
	for i, ep := range p.endpoints {
		m := member{ep: ep, addr: ep.Addr(), weight: p.weights[i]}
		m.points = int(max(1, (pointsPerMember*m.weight*int64(len(p.endpoints))+total/2)/total))
		if place, ok := was[m.addr]; ok {
			m.hash = old.members[place].hash
			p.members[place] = m
		} else {
			m.hash = hashString(m.addr)
			joined = append(joined, m)
		}
	}
	p.changeRing(old, joined)
}

// changeRing gives indices to the members that joined, and changes the points of the ring.
func (p *ketama) changeRing(old *ketama, joined []member) {
	more := 0
	for _, m := range joined {
		more += m.points
	}
	added := make([]point, 0, more)
	var removed []point
	for i, m := range old.members {
		now := p.members[i].points // none if the member has gone
		added = p.members[i].appendPoints(added, i, m.points, now)
		removed = m.appendPoints(removed, i, now, m.points)
	}
	free := 0
	for _, m := range joined {
		for free < len(p.members) && p.members[free].ep != nil {
			free++
		}
		if free == len(p.members) {
			p.members = append(p.members, member{})
		}
		p.members[free] = m
		added = m.appendPoints(added, free, 0, m.points)
	}
	p.merge(old, sorted(added), sorted(removed))
}

// appendPoints appends the points from up to but not including to of a member with the index place.
func (m *member) appendPoints(points []point, place, from, to int) []point {
	for k := from; k < to; k++ {
		// SplitMix64, seeded with the address: a pseudorandom sequence with direct access to each
		// number.
		hash := mix(m.hash + uint64(k+1)*0x9e3779b97f4a7c15)
		points = append(points, point{hash: hash, owner: int32(place)}) //nolint:gosec // there are never that many endpoints
	}
	return points
}

// merge builds the ring from the old one. It copies the parts between changed points.
func (p *ketama) merge(old *ketama, added, removed []point) {
	n := len(old.hashes) + len(added) - len(removed)
	p.hashes, p.owners = make([]uint64, 0, n), make([]int32, 0, n)
	at := 0
	keep := func(to int) {
		p.hashes = append(p.hashes, old.hashes[at:to]...)
		p.owners = append(p.owners, old.owners[at:to]...)
		at = to
	}
	for len(added)+len(removed) > 0 {
		if len(added) == 0 || len(removed) > 0 && removed[0].compare(added[0]) < 0 {
			keep(old.from(at, removed[0]))
			at++
			removed = removed[1:]
			continue
		}
		pt := added[0]
		keep(old.from(at, pt))
		p.hashes, p.owners = append(p.hashes, pt.hash), append(p.owners, pt.owner)
		added = added[1:]
	}
	keep(len(old.hashes))
}

// from returns the index of pt in the ring, or where it would be. It is not before at.
func (p *ketama) from(at int, pt point) int {
	next, _ := slices.BinarySearch(p.hashes[at:], pt.hash)
	for at += next; at < len(p.hashes) && p.hashes[at] == pt.hash && p.owners[at] < pt.owner; {
		at++
	}
	return at
}

func (p *ketama) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p.hashes) == 0 {
		return nil
	}
	key := mix(p.by(call))
	at := p.after(key)
	for range min(len(p.hashes), farthest) {
		if at == len(p.hashes) {
			at = 0
		}
		if ep := p.members[p.owners[at]].ep; !call.Attempts().Avoids(ep) {
			return ep
		}
		at++
	}
	return p.members.other(call, key)
}

// after returns the index of the point that follows key. The first point follows the last one.
func (p *ketama) after(key uint64) int {
	at, _ := slices.BinarySearch(p.hashes, key)
	return at
}

// farthest is how many points are checked for an endpoint that the call does not avoid. If half of
// all endpoints are avoided, this number is practically always enough.
const farthest = 256

// other picks the endpoint of a key if the call avoids nearly all endpoints. All clients pick the
// same endpoint. The algorithm is rendezvous hashing (Thaler and Ravishankar, 1998).
func (all members) other(call *yodel.Call, key uint64) *yodel.Endpoint {
	var picked *yodel.Endpoint
	best := uint64(0)
	for i := range all {
		m := &all[i]
		if m.ep == nil || call.Attempts().Avoids(m.ep) {
			continue
		}
		if fit := mix(key ^ m.hash); picked == nil || fit > best {
			picked, best = m.ep, fit
		}
	}
	return picked
}
