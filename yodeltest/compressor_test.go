// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"

	stdflate "compress/flate"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
)

func TestFlateKeepsTheContract(t *testing.T) { TestCompressor(t, flate.Compressor) }

// A brokenCompressor is flate.Compressor, but for the functions that are set.
type brokenCompressor struct {
	name       func() string
	append     func(dst, src []byte) ([]byte, error)
	decompress func(dst, src []byte, limit int) ([]byte, error)
}

func (c brokenCompressor) Name() string {
	if c.name != nil {
		return c.name()
	}
	return "broken"
}

func (c brokenCompressor) Append(dst, src []byte) ([]byte, error) {
	if c.append != nil {
		return c.append(dst, src)
	}
	return flate.Compressor.Append(dst, src)
}

func (c brokenCompressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	if c.decompress != nil {
		return c.decompress(dst, src, limit)
	}
	return flate.Compressor.Decompress(dst, src, limit)
}

func TestCompressorCatchesBrokenCompressors(t *testing.T) {
	tests := []struct {
		name       string
		compressor compress.Compressor
		rule       string // that the compressor breaks
	}{
		{"no name", brokenCompressor{name: func() string { return "" }}, "the name is stable"},
		{"loses the end", brokenCompressor{decompress: losesTheEnd}, "bytes round-trip"},
		{"counts too far", brokenCompressor{decompress: countsTooFar}, "bytes round-trip"},
		{"panics", brokenCompressor{decompress: func([]byte, []byte, int) ([]byte, error) { panic("oops") }}, "bytes round-trip"},
		{"compresses over dst", brokenCompressor{append: func(dst, src []byte) ([]byte, error) { return flate.Compressor.Append(dst[:0], src) }}, "results go behind dst"},
		{"decompresses over dst", brokenCompressor{decompress: func(dst, src []byte, limit int) ([]byte, error) {
			return flate.Compressor.Decompress(dst[:0], src, limit)
		}}, "results go behind dst"},
		{"returns a buffer of its own", ownBuffer(), "nothing is kept"},
		{"returns src", brokenCompressor{append: storeByReference, decompress: loadByReference}, "nothing is kept"},
		{"writes to src", brokenCompressor{append: scribblesOnSrc}, "nothing is kept"},
		{"writes to the compressed src", brokenCompressor{decompress: scribblesOnCompressed}, "nothing is kept"},
		{"has no limit", brokenCompressor{decompress: noLimit}, "the limit is exact"},
		{"stops at the limit without an error", brokenCompressor{decompress: silentLimit}, "the limit is exact"},
		{"has an error of its own for the limit", brokenCompressor{decompress: otherError}, "the limit is exact"},
		{"counts dst", brokenCompressor{decompress: countsDst}, "the limit is exact"},
		{"looks at the limit when it is done", brokenCompressor{decompress: lateLimit}, "a bomb costs no more than the limit"},
		{"accepts what ends early", brokenCompressor{decompress: acceptsEarlyEnd}, "damage is an error"},
		{"ignores what follows", brokenCompressor{decompress: ignoresRest}, "damage is an error"},
		{"panics at damage", brokenCompressor{decompress: panicsAtDamage}, "hostile bytes are errors"},
		{"allocates first", brokenCompressor{decompress: allocatesFirst}, "hostile bytes are errors"},
		{"exceeds the limit of hostile bytes", brokenCompressor{decompress: padsDamage}, "hostile bytes are errors"},
		{"breaks after an error", breaksAfterDamage(), "an error leaves nothing behind"},
		{"mixes up calls", mixesUpCompression(), "use is concurrent"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := brokenRule(t, compressorRules(test.compressor), test.rule)
			if err == nil {
				t.Fatalf("the rule %q did not catch it", test.rule)
			}
			t.Logf("caught: %.200v", err)
		})
	}
}

func losesTheEnd(dst, src []byte, limit int) ([]byte, error) {
	b, err := flate.Compressor.Decompress(dst, src, limit)
	if len(b) > len(dst)+1 {
		b = b[:len(b)-1]
	}
	return b, err
}

// countsTooFar adds one to the limit, which may be the largest number.
func countsTooFar(dst, src []byte, limit int) ([]byte, error) {
	if limit+1 < limit {
		limit = 0
	}
	return flate.Compressor.Decompress(dst, src, limit)
}

func ownBuffer() compress.Compressor {
	var buffer []byte
	return brokenCompressor{decompress: func(dst, src []byte, limit int) ([]byte, error) {
		if len(dst) > 0 {
			return flate.Compressor.Decompress(dst, src, limit)
		}
		var err error
		buffer, err = flate.Compressor.Decompress(buffer[:0], src, limit)
		return buffer, err
	}}
}

// storeByReference "compresses" by returning src.
func storeByReference(dst, src []byte) ([]byte, error) {
	if dst == nil {
		return src, nil
	}
	return append(dst, src...), nil
}

func loadByReference(dst, src []byte, _ int) ([]byte, error) { return storeByReference(dst, src) }

func scribblesOnSrc(dst, src []byte) ([]byte, error) {
	b, err := flate.Compressor.Append(dst, src)
	if len(src) > 0 {
		src[0]++
	}
	return b, err
}

func scribblesOnCompressed(dst, src []byte, limit int) ([]byte, error) {
	b, err := flate.Compressor.Decompress(dst, src, limit)
	src[len(src)-1]++
	return b, err
}

func noLimit(dst, src []byte, _ int) ([]byte, error) {
	return flate.Compressor.Decompress(dst, src, 1<<30)
}

func silentLimit(dst, src []byte, limit int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(stdflate.NewReader(bytes.NewReader(src)), int64(limit)))
	return append(dst, b...), err
}

func otherError(dst, src []byte, limit int) ([]byte, error) {
	b, err := flate.Compressor.Decompress(dst, src, limit)
	if errors.Is(err, compress.ErrTooLarge) {
		err = errors.New("too much")
	}
	return b, err
}

func countsDst(dst, src []byte, limit int) ([]byte, error) {
	return flate.Compressor.Decompress(dst, src, limit-len(dst))
}

func lateLimit(dst, src []byte, limit int) ([]byte, error) {
	b, err := noLimit(dst, src, limit)
	if err == nil && len(b)-len(dst) > limit {
		err = compress.ErrTooLarge
	}
	return b, err
}

func acceptsEarlyEnd(dst, src []byte, limit int) ([]byte, error) {
	b, err := flate.Compressor.Decompress(dst, src, limit)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return b, err
}

func ignoresRest(dst, src []byte, _ int) ([]byte, error) {
	b, err := io.ReadAll(stdflate.NewReader(bytes.NewReader(src)))
	return append(dst, b...), err
}

func panicsAtDamage(dst, src []byte, limit int) ([]byte, error) {
	b, err := flate.Compressor.Decompress(dst, src, limit)
	if err != nil && !errors.Is(err, compress.ErrTooLarge) {
		panic(err)
	}
	return b, err
}

func allocatesFirst(dst, src []byte, limit int) ([]byte, error) {
	return flate.Compressor.Decompress(append(make([]byte, 0, 8<<20), dst...), src, limit)
}

func padsDamage(dst, src []byte, limit int) ([]byte, error) {
	if b, err := flate.Compressor.Decompress(dst, src, limit); err == nil {
		return b, nil
	}
	return append(dst, make([]byte, limit+1)...), nil
}

func breaksAfterDamage() compress.Compressor {
	var failed error
	return brokenCompressor{decompress: func(dst, src []byte, limit int) ([]byte, error) {
		if failed != nil {
			return dst, failed
		}
		dst, failed = flate.Compressor.Decompress(dst, src, limit)
		return dst, failed
	}}
}

// mixesUpCompression keeps what it compresses where every call sees it. It locks, so that the suite
// has to catch it and not the race detector.
func mixesUpCompression() compress.Compressor {
	var mu sync.Mutex
	var current []byte
	return brokenCompressor{append: func(dst, src []byte) ([]byte, error) {
		mu.Lock()
		current = src
		mu.Unlock()
		for range 100 {
			runtime.Gosched()
		}
		mu.Lock()
		defer mu.Unlock()
		b, err := flate.Compressor.Append(dst, current)
		if err != nil {
			err = fmt.Errorf("compress: %w", err)
		}
		return b, err
	}}
}
