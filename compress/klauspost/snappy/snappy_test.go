// SPDX-License-Identifier: Apache-2.0

package snappy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	std "github.com/klauspost/compress/snappy"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/klauspost/snappy"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestKeepsTheContract(t *testing.T) { yodeltest.TestCompressor(t, snappy.Compressor) }

var text = []byte(strings.Repeat("a rose is a rose is a rose, and ", 20))

func TestInteroperatesWithTheLibrary(t *testing.T) {
	small, err := snappy.Compressor.Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := std.DecodeStrict(nil, small); err != nil || !bytes.Equal(got, text) {
		t.Errorf("a strict decoder got %q and error %v", got, err)
	}
	if got, err := snappy.Compressor.Decompress(nil, std.Encode(nil, text), len(text)); err != nil || !bytes.Equal(got, text) {
		t.Errorf("got %q of what the library encoded, error %v", got, err)
	}
}

func TestAnImpossibleLengthIsNotAllocated(t *testing.T) {
	claim := binary.AppendUvarint(nil, 1<<30)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := snappy.Compressor.Decompress(nil, claim, 1<<31-1); err == nil {
		t.Error("got no error")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("allocated %d bytes", n)
	}
}

func TestTheBestRatioDecompresses(t *testing.T) {
	zeros := make([]byte, 1<<20)
	small, err := snappy.Compressor.Append(nil, zeros)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := snappy.Compressor.Decompress(nil, small, len(zeros)); err != nil || !bytes.Equal(got, zeros) {
		t.Errorf("%d bytes, compressed to %d, came back as %d, error %v", len(zeros), len(small), len(got), err)
	}
}

func FuzzDecompress(f *testing.F) {
	for _, plain := range []string{"", "a", string(text)} {
		b, err := snappy.Compressor.Append(nil, []byte(plain))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		const limit = 1 << 16
		got, err := snappy.Compressor.Decompress(nil, src, limit)
		if err != nil {
			return
		}
		if len(got) > limit {
			t.Fatalf("%d bytes with a limit of %d", len(got), limit)
		}
		again, err := snappy.Compressor.Append(nil, got)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := snappy.Compressor.Decompress(nil, again, limit); err != nil || !bytes.Equal(back, got) {
			t.Fatalf("%q came back as %q, error %v", got, back, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	dst := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := snappy.Compressor.Append(dst, text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecompress(b *testing.B) {
	small, err := snappy.Compressor.Append(nil, text)
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := snappy.Compressor.Decompress(dst, small, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	small, err := snappy.Compressor.Append(nil, []byte(strings.Repeat("yodel-ay-ee-", 100)))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = snappy.Compressor.Decompress(nil, small, 1000)
	fmt.Println(len(small) < 100, errors.Is(err, compress.ErrTooLarge))
	// Output: true true
}
