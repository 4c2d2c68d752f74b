// SPDX-License-Identifier: Apache-2.0

// Package s2 compresses messages as S2 blocks. S2 is an extension of Snappy by the library
// github.com/klauspost/compress. It is faster than Snappy, and its output is smaller. The
// compressor decompresses Snappy blocks too.
package s2

import (
	"fmt"

	"github.com/klauspost/compress/s2"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/klauspost/internal/block"
)

// Compressor is called "s2". A few bytes of S2 can decompress to 16 MiB. Decompress allocates that
// much only after it has checked the block.
var Compressor compress.Compressor = compressor{}

type compressor struct{}

func (compressor) Name() string { return "s2" }

func (compressor) Append(dst, src []byte) ([]byte, error) {
	b, err := block.Append(dst, src, s2.Encode)
	if err != nil {
		return nil, fmt.Errorf("s2: %w", err)
	}
	return b, nil
}

func (compressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	b, err := block.Decompress(dst, src, limit)
	if err != nil {
		return nil, fmt.Errorf("s2: %w", err)
	}
	return b, nil
}
