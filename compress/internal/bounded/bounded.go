// SPDX-License-Identifier: Apache-2.0

// Package bounded reads decompressed streams, which may be endless.
package bounded

import (
	"io"

	"github.com/yodel-rpc/yodel"
)

// least is the least that is allocated, unless the limit is less.
const least = 512

// Append appends what r holds to dst. More than limit bytes are yodel.ErrTooLarge, at once. It
// allocates as it reads, so that a short stream is cheap whatever the limit, and about twice the
// limit in all at most: each time as much again as there was, or what is left of the limit when
// that is about as much.
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
			room = room[:limit+1] // the byte too many tells a full stream from an endless one
		}
		n, err := r.Read(room)
		if n > limit {
			return dst, yodel.ErrTooLarge
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
