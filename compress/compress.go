// SPDX-License-Identifier: Apache-2.0

// Package compress has the interface of compressors. The packages below it implement it.
package compress

import "github.com/yodel-rpc/yodel/internal/unpack"

// A Compressor makes encoded messages smaller. Its methods are called concurrently.
type Compressor interface {
	// Name returns the compressor's name on the wire, for example "gzip".
	Name() string
	// Append appends the compressed src to dst and returns the extended slice.
	Append(dst, src []byte) ([]byte, error)
	// Decompress appends the decompressed src to dst and returns the extended slice. It must stop
	// with an error that matches ErrTooLarge as soon as it would append more than limit bytes. In
	// one call it may allocate about twice limit, plus memory that it keeps for later calls. It
	// must not allocate memory of a length that src only announces.
	Decompress(dst, src []byte, limit int) ([]byte, error)
}

// ErrTooLarge is the error of a Compressor that reached the limit on decompressed bytes.
var ErrTooLarge = unpack.ErrTooLarge
