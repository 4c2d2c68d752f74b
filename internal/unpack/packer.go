// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/memory"
)

// A Compressor is a compress.Compressor.
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

// ErrUnagreed is the error of a compressed body for which no compressor was agreed.
var ErrUnagreed = errors.New("the compressor was not named")

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

// Unpack decompresses body into dst, within the limits. It counts the result in a. It waits
// until ctx ends if other decompressions keep the processors busy. Its errors are ErrUnagreed, and
// those of Gate.Decompress.
func (p *Packer) Unpack(ctx context.Context, a Account, dst, body []byte) ([]byte, error) {
	if p.Compressor == nil {
		return nil, ErrUnagreed
	}
	return p.Gate.Decompress(ctx, p.Compressor, a, dst, body, p.Limits.of(len(body)))
}

// TooLarge describes a body that is too large after decompression, for the error of its call.
func (p *Packer) TooLarge(body []byte) string {
	most := p.Limits.of(len(body))
	if most == p.Limits.Most {
		return fmt.Sprintf("has more than %d bytes after decompression (%s): that is Limits.MaxDecompressed", most, p.Name())
	}
	return fmt.Sprintf("has %d bytes, and more than %d after decompression (%s): that is the default of Limits.MaxDecompressed for its size", len(body), most, p.Name())
}

// Fault returns the fault of a call whose body Unpack refused with err. Unpack refuses a body that
// is too large, and one for which this side has no memory. For another err, Fault returns nil. The
// text names the body with what, for example "the request", and this side with side, for example
// "the server".
func (p *Packer) Fault(err error, method, what, side string, body []byte) *fault.Fault {
	switch {
	case errors.Is(err, memory.ErrFull):
		return fault.Of(catalogue.NoMemory, method, "%s has no memory left to decompress %s", side, what)
	case errors.Is(err, ErrTooLarge):
		return fault.Of(catalogue.UnpackedTooLarge, method, "%s %s", what, p.TooLarge(body))
	}
	return nil
}
