// SPDX-License-Identifier: Apache-2.0

// Package block is what Snappy and S2 have in common: blocks that begin with the decompressed length.
package block

import (
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/yodel-rpc/yodel"
)

// Append appends what encode makes of src to dst.
func Append(dst, src []byte, encode func(dst, src []byte) []byte) ([]byte, error) {
	n := s2.MaxEncodedLen(len(src))
	if n < 0 {
		return nil, s2.ErrTooLarge
	}
	dst = slices.Grow(dst, n)
	b := encode(dst[len(dst):len(dst)+n], src)
	return dst[:len(dst)+len(b)], nil
}

// Decompress appends the decompressed src to dst, if that is at most limit bytes, and not more than
// ratio for each byte of src, which nothing truthful is.
func Decompress(dst, src []byte, limit, ratio int) ([]byte, error) {
	n, err := s2.DecodedLen(src)
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, yodel.ErrTooLarge
	}
	if n/ratio > len(src) {
		return nil, s2.ErrCorrupt
	}
	dst = slices.Grow(dst, n)
	b, err := s2.Decode(dst[len(dst):len(dst)+n], src)
	if err != nil {
		return nil, err
	}
	return dst[:len(dst)+len(b)], nil
}
