// SPDX-License-Identifier: Apache-2.0

// Package snappy compresses messages as Snappy blocks, which is fast and supported by many
// languages. If both sides are Go programs, s2 is better.
package snappy

import (
	"fmt"

	"github.com/klauspost/compress/s2"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/klauspost/internal/block"
)

// Compressor is called "snappy".
var Compressor compress.Compressor = compressor{}

type compressor struct{}

func (compressor) Name() string { return "snappy" }

func (compressor) Append(dst, src []byte) ([]byte, error) {
	b, err := block.Append(dst, src, s2.EncodeSnappy)
	if err != nil {
		return nil, fmt.Errorf("snappy: %w", err)
	}
	return b, nil
}

func (compressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	b, err := block.Decompress(dst, src, limit)
	if err != nil {
		return nil, fmt.Errorf("snappy: %w", err)
	}
	return b, nil
}
