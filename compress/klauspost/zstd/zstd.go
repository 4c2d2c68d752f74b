// SPDX-License-Identifier: Apache-2.0

// Package zstd compresses messages with Zstandard: smaller than all others here, and slower than
// snappy and s2.
package zstd

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/yodel-rpc/yodel"
)

// Compressor is called "zstd". It keeps about 2 MB for each concurrent call.
var Compressor yodel.Compressor = new(compressor)

type compressor struct {
	encoders sync.Pool // of *zstd.Encoder
	decoders sync.Pool // of *zstd.Decoder
}

func (*compressor) Name() string { return "zstd" }

func (c *compressor) Append(dst, src []byte) ([]byte, error) {
	e, ok := c.encoders.Get().(*zstd.Encoder)
	if !ok {
		var err error
		// An empty message has a frame too, so that nothing at all can be an error.
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
	maxBlock = 128 << 10    // bytes that a block can stand for
	maxRatio = maxBlock / 4 // bytes that a byte can stand for: no block is shorter than four
	slack    = 16           // bytes that the decoder wants behind what it decodes, to be fast
)

// decodeAll gives d the room that the frame says it needs.
func decodeAll(d *zstd.Decoder, dst, src []byte, limit int) ([]byte, error) {
	var frame zstd.Header
	if err := frame.Decode(src); err != nil {
		return nil, err
	}
	most := int(min(int64(limit), maxRatio*int64(len(src))))
	if frame.HasFCS {
		size := frame.FrameContentSize
		if size > uint64(limit) {
			return nil, yodel.ErrTooLarge
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

// decodeGrowing gives d more and more room, at most a number of bytes: the frame does not say how
// much it needs, or there are more frames.
func decodeGrowing(d *zstd.Decoder, dst, src []byte, limit, most int) ([]byte, error) {
	for room := maxBlock + 4*len(src); ; room *= 4 {
		room = min(room, most)
		// There is room for another block: an error before room is full is not for lack of it.
		b, n, err := decodeInto(d, dst, src, room+maxBlock+slack)
		if err == nil && n <= limit {
			return b, nil
		}
		enough := n <= room && !errors.Is(err, zstd.ErrDecoderSizeExceeded)
		if !enough && (room == limit || n > limit) {
			return nil, yodel.ErrTooLarge
		}
		if enough || room == most {
			return nil, err
		}
	}
}

// decodeInto decodes src behind dst, with room for so many bytes, and returns how many it was. With
// an error, what it returns is not to be used.
func decodeInto(d *zstd.Decoder, dst, src []byte, room int) ([]byte, int, error) {
	dst = slices.Grow(dst, room)
	b, err := d.DecodeAll(src, dst[len(dst):len(dst):len(dst)+room])
	if err != nil {
		return nil, len(b), err
	}
	return dst[:len(dst)+len(b)], len(b), nil // the decoder was not let grow dst
}
