// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"fmt"
)

// A Compressor is a yodel.Compressor.
type Compressor interface {
	Decompressor
	Name() string
	Append(dst, src []byte) ([]byte, error)
}

// A Packer compresses bodies of Above bytes or more, and decompresses bodies. Compressor is nil if
// none was agreed.
type Packer struct {
	Compressor
	Above  int // bytes
	Limits Limits
	Gate   *Gate
}

// Limits is how many bytes a body may have after decompression: at most Most, and at most Ratio
// times its size unless that is less than 64 KiB. A Ratio of 0 has no effect.
type Limits struct{ Most, Ratio int }

// least is the size after decompression that is allowed for bodies of any size.
const least = 64 << 10

// of returns how many bytes a compressed body of n bytes may have after decompression.
func (l *Limits) of(n int) int {
	if l.Ratio == 0 || n >= l.Most/l.Ratio {
		return l.Most
	}
	return max(l.Ratio*n, least)
}

// Pack compresses body into scratch. It returns the result, and whether the result is to be sent
// instead of body: it is smaller, and a receiver with the same limits can decompress it.
func (p *Packer) Pack(scratch, body []byte) (packed []byte, ok bool, err error) {
	if p.Compressor == nil || len(body) < p.Above || len(body) > p.Limits.Most {
		return scratch, false, nil
	}
	packed, err = p.Append(scratch[:0], body)
	if err != nil {
		return scratch, false, fmt.Errorf("compress with %s: %w", p.Name(), err)
	}
	return packed, len(packed) < len(body) && p.Fits(body, packed), nil
}

// Fits reports whether a receiver with the same limits can decompress packed to body.
func (p *Packer) Fits(body, packed []byte) bool { return len(body) <= p.Limits.of(len(packed)) }

// Unpack decompresses body into memory, within the limits. It counts the result in a. It waits
// until ctx ends if other decompressions keep the processors busy. For its errors, see
// Gate.Decompress.
func (p *Packer) Unpack(ctx context.Context, a Account, memory, body []byte) ([]byte, error) {
	return p.Gate.Decompress(ctx, p.Compressor, a, memory, body, p.Limits.of(len(body)))
}

// TooLarge describes a body that is too large after decompression, for the error of its call.
func (p *Packer) TooLarge(body []byte) string {
	most := p.Limits.of(len(body))
	if most == p.Limits.Most {
		return fmt.Sprintf("has more than %d bytes after decompression (%s): that is Limits.MaxDecompressed", most, p.Name())
	}
	return fmt.Sprintf("has %d bytes, and more than %d after decompression (%s): that is the default of Limits.MaxDecompressed for its size", len(body), most, p.Name())
}
