// SPDX-License-Identifier: Apache-2.0

package metadata

import (
	"bytes"
	"sync/atomic"
)

// A Cache remembers the metadata that the calls of a client, or of a served connection, have in
// common, such as a token. Parsing allocates a map, and a string for each key and value, which
// takes a tenth of the time of a short call. The zero value is ready to use. A Cache may be used
// concurrently.
type Cache struct {
	last   atomic.Pointer[Repeated] // nil until metadata repeats
	unlike atomic.Uint32            // calls whose metadata differs
}

// Limits of a Cache. Metadata larger than maxRepeated is not remembered. Of the calls whose
// metadata differs from the remembered metadata, only every misses-th call has its metadata
// remembered in its place.
const (
	maxRepeated = 1 << 10
	misses      = 16
)

// A Repeated is metadata that many calls have in common. It never changes, so all processors can
// keep it in their caches.
type Repeated struct {
	raw   []byte // encoded
	pairs []pair
}

type pair struct{ key, value string }

// Find returns the remembered metadata if its encoding is b, and nil otherwise.
func (c *Cache) Find(b []byte) *Repeated {
	if r := c.last.Load(); r != nil && bytes.Equal(b, r.raw) {
		return r
	}
	return nil
}

// Missed counts a call whose metadata is md, encoded as b, and may remember its metadata.
func (c *Cache) Missed(b []byte, md map[string]string) {
	if len(b) > maxRepeated || c.unlike.Add(1)%misses != 1 {
		return
	}
	r := &Repeated{raw: bytes.Clone(b)}
	for key, value := range md {
		r.pairs = append(r.pairs, pair{key, value})
	}
	c.last.Store(r)
}

// Encode encodes md into dst, or returns the remembered encoding. Memory is dst, which may have
// been extended. The encoding must not be changed.
func (c *Cache) Encode(dst []byte, md map[string]string) (encoded, memory []byte) {
	if r := c.last.Load(); r != nil && r.Is(md) {
		return r.raw, dst
	}
	dst = Append(dst, md)
	c.Missed(dst, md)
	return dst, dst
}

// Is reports whether md is equal to r. It looks up each key in md, which takes a quarter of the
// time of an iteration over md.
func (r *Repeated) Is(md map[string]string) bool {
	for i := range r.pairs {
		if value, ok := md[r.pairs[i].key]; !ok || value != r.pairs[i].value {
			return false
		}
	}
	return len(md) == len(r.pairs)
}

// Decode returns r as a new map.
func (r *Repeated) Decode() map[string]string {
	md := make(map[string]string, len(r.pairs))
	for _, p := range r.pairs {
		md[p.key] = p.value
	}
	return md
}
