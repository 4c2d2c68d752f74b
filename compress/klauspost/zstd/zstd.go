// SPDX-License-Identifier: Apache-2.0

// Package zstd compresses messages with Zstandard. Its output is smaller than that of the other
// compressors of yodel, but it is slower than snappy and s2.
package zstd

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/yodel-rpc/yodel/compress"
)

// Compressor is called "zstd". It keeps about 2 MB for each concurrent call.
var Compressor compress.Compressor = new(compressor)

type compressor struct {
	encoders sync.Pool // of *zstd.Encoder
	decoders sync.Pool // of *zstd.Decoder
}

func (*compressor) Name() string { return "zstd" }

func (c *compressor) Append(dst, src []byte) ([]byte, error) {
	e, ok := c.encoders.Get().(*zstd.Encoder)
	if !ok {
		var err error
		// An empty message becomes a frame too, so that Decompress can refuse an empty input.
		e, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithZeroFrames(true))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
	}
	defer c.encoders.Put(e)
	return e.EncodeAll(src, dst), nil
}

func (c *compressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	d, ok := c.decoders.Get().(*zstd.Decoder)
	if !ok {
		var err error
		d, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
	}
	defer c.decoders.Put(d)
	b, err := decodeAll(d, dst, src, limit)
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return b, nil
}

const (
	maxBlock = 128 << 10    // maximum decompressed size of a block
	maxRatio = maxBlock / 4 // maximum decompressed bytes for each byte: a block has at least four
	slack    = 16           // free bytes after the output that the decoder needs to be fast
)

// decodeAll decodes src with as much memory as its frame announces.
func decodeAll(d *zstd.Decoder, dst, src []byte, limit int) ([]byte, error) {
	var frame zstd.Header
	if err := frame.Decode(src); err != nil {
		return nil, err
	}
	most := int(min(int64(limit), maxRatio*int64(len(src))))
	if frame.HasFCS {
		size := frame.FrameContentSize
		if size > uint64(limit) {
			return nil, compress.ErrTooLarge
		}
		if size > uint64(most) {
			return nil, zstd.ErrFrameSizeMismatch
		}
		b, n, err := decodeInto(d, dst, src, int(size)+slack) //nolint:gosec // G115: it is within the limit
		if err == nil && n <= limit {
			return b, nil
		}
	}
	return decodeGrowing(d, dst, src, limit, most)
}

// decodeGrowing decodes src with growing memory, up to most bytes. It is for a frame that does not
// announce its size, and for several frames.
func decodeGrowing(d *zstd.Decoder, dst, src []byte, limit, most int) ([]byte, error) {
	for room := maxBlock + 4*len(src); ; room *= 4 {
		room = min(room, most)
		// There is space for another block, so an error before room is full has another cause.
		b, n, err := decodeInto(d, dst, src, room+maxBlock+slack)
		if err == nil && n <= limit {
			return b, nil
		}
		enough := n <= room && !errors.Is(err, zstd.ErrDecoderSizeExceeded)
		if !enough && (room == limit || n > limit) {
			return nil, compress.ErrTooLarge
		}
		if enough || room == most {
			return nil, err
		}
	}
}

// decodeInto decodes src after dst, with space for room bytes, and returns the number of decoded
// bytes. After an error, the result must not be used.
func decodeInto(d *zstd.Decoder, dst, src []byte, room int) ([]byte, int, error) {
	dst = slices.Grow(dst, room)
	b, err := d.DecodeAll(src, dst[len(dst):len(dst):len(dst)+room])
	if err != nil {
		return nil, len(b), err
	}
	return dst[:len(dst)+len(b)], len(b), nil // the decoder could not reallocate dst
}
