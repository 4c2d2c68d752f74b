// SPDX-License-Identifier: Apache-2.0

// Package bounded reads decompressed streams, which may be endless.
package bounded

import (
	"io"

	"github.com/yodel-rpc/yodel/compress"
)

// least is the size of the first allocation, unless the limit is less.
const least = 512

// Append appends the content of r to dst. If r has more than limit bytes, it stops and returns
// compress.ErrTooLarge. It allocates as it reads, so a short stream is cheap whatever the limit is.
// Each allocation doubles the space, up to the limit. In all it allocates at most about twice the
// limit.
func Append(dst []byte, r io.Reader, limit int) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			more := max(len(dst), least)
			if limit-more < more/4 {
				more = limit + 1
			}
			dst = append(make([]byte, 0, len(dst)+more), dst...)
		}
		room := dst[len(dst):cap(dst)]
		if limit < len(room) {
			room = room[:limit+1] // one byte more detects a stream above the limit
		}
		n, err := r.Read(room)
		if n > limit {
			return dst, compress.ErrTooLarge
		}
		dst, limit = dst[:len(dst)+n], limit-n
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}
