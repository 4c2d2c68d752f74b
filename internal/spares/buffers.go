// SPDX-License-Identifier: Apache-2.0

package spares

import "sync"

// Buffers reuses the memory of small messages. The zero value is ready. Its methods may be called
// concurrently.
type Buffers struct{ pool sync.Pool }

// mostKept is the largest buffer that is kept.
const mostKept = 128 << 10

// Get returns an empty buffer of any capacity.
func (p *Buffers) Get() *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

// GetFor is Get for n bytes that may be held for a long time. It does not return a much larger
// buffer, because only n bytes are counted for the holder.
func (p *Buffers) GetFor(n int) *[]byte {
	const small, factor = 4 << 10, 4
	b := p.Get()
	if cap(*b) > max(small, factor*n) {
		p.pool.Put(b)
		b = new([]byte)
	}
	return b
}

// Put gives a buffer back, unless it is so large that keeping it would waste memory.
func (p *Buffers) Put(b *[]byte) {
	if cap(*b) > mostKept {
		return
	}
	*b = (*b)[:0]
	p.pool.Put(b)
}
