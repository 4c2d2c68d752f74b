// SPDX-License-Identifier: Apache-2.0

package hpack

// DefaultTableSize is the size in bytes of a table that no side has changed (RFC 9113, section
// 6.5.2).
const DefaultTableSize = 4096

// entryCost is what an entry counts beside its name and its value (RFC 7541, section 4.1).
const entryCost = 32

// An entry is a field in the dynamic table.
type entry[M any] struct {
	name, value string
	meaning     M
}

func sizeOf(name, value string) int { return len(name) + len(value) + entryCost }

// A table is a dynamic table (RFC 7541, section 2.3.2): the newest entries that have room in it.
type table[M any] struct {
	ring  []entry[M] // as long as a power of two
	added int        // how many entries were added since the beginning
	n     int        // how many entries are there
	size  int        // of these, in bytes
	most  int        // the largest size
}

// get returns the entry that was added i entries before the newest.
func (t *table[M]) get(i int) *entry[M] {
	return &t.ring[(t.added-1-i)&(len(t.ring)-1)]
}

// add adds a field after it has evicted entries that have no room beside it. It returns nil if the
// table has no room for the field at all.
func (t *table[M]) add(name, value string) *entry[M] {
	size := sizeOf(name, value)
	t.evict(t.most - size)
	if size > t.most {
		return nil
	}
	if t.n == len(t.ring) {
		t.grow()
	}
	t.added++
	t.n++
	t.size += size
	e := t.get(0)
	*e = entry[M]{name: name, value: value}
	return e
}

// evict drops the oldest entries until the table has at most this size.
func (t *table[M]) evict(most int) {
	for t.n > 0 && t.size > most {
		oldest := t.get(t.n - 1)
		t.size -= sizeOf(oldest.name, oldest.value)
		t.n--
		*oldest = entry[M]{}
	}
}

func (t *table[M]) setMost(most int) {
	t.most = most
	t.evict(most)
}

func (t *table[M]) grow() {
	ring := make([]entry[M], max(8, 2*len(t.ring)))
	for i := range t.n {
		ring[(t.added-1-i)&(len(ring)-1)] = *t.get(i)
	}
	t.ring = ring
}

// static has the entries of the static table, from index 1 (RFC 7541, appendix A).
var static = [...]struct{ name, value string }{
	1: {":authority", ""}, {":method", "GET"}, {":method", "POST"}, {":path", "/"}, {":path", "/index.html"},
	{":scheme", "http"}, {":scheme", "https"}, {":status", "200"}, {":status", "204"}, {":status", "206"},
	{":status", "304"}, {":status", "400"}, {":status", "404"}, {":status", "500"}, {"accept-charset", ""},
	{"accept-encoding", "gzip, deflate"}, {"accept-language", ""}, {"accept-ranges", ""}, {"accept", ""},
	{"access-control-allow-origin", ""}, {"age", ""}, {"allow", ""}, {"authorization", ""}, {"cache-control", ""},
	{"content-disposition", ""}, {"content-encoding", ""}, {"content-language", ""}, {"content-length", ""},
	{"content-location", ""}, {"content-range", ""}, {"content-type", ""}, {"cookie", ""}, {"date", ""}, {"etag", ""},
	{"expect", ""}, {"expires", ""}, {"from", ""}, {"host", ""}, {"if-match", ""}, {"if-modified-since", ""},
	{"if-none-match", ""}, {"if-range", ""}, {"if-unmodified-since", ""}, {"last-modified", ""}, {"link", ""},
	{"location", ""}, {"max-forwards", ""}, {"proxy-authenticate", ""}, {"proxy-authorization", ""}, {"range", ""},
	{"referer", ""}, {"refresh", ""}, {"retry-after", ""}, {"server", ""}, {"set-cookie", ""},
	{"strict-transport-security", ""}, {"transfer-encoding", ""}, {"user-agent", ""}, {"vary", ""}, {"via", ""},
	{"www-authenticate", ""},
}
