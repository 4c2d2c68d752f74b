// SPDX-License-Identifier: Apache-2.0

package s2_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	std "github.com/klauspost/compress/s2"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/klauspost/s2"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestKeepsTheContract(t *testing.T) { yodeltest.TestCompressor(t, s2.Compressor) }

var text = []byte(strings.Repeat("a rose is a rose is a rose, and ", 20))

func TestDecompressesSnappy(t *testing.T) {
	if got, err := s2.Compressor.Decompress(nil, std.EncodeSnappy(nil, text), len(text)); err != nil || !bytes.Equal(got, text) {
		t.Errorf("got %q and error %v", got, err)
	}
}

func FuzzDecompress(f *testing.F) {
	for _, plain := range []string{"", "a", string(text)} {
		b, err := s2.Compressor.Append(nil, []byte(plain))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		const limit = 1 << 16
		got, err := s2.Compressor.Decompress(nil, src, limit)
		if err != nil {
			return
		}
		if len(got) > limit {
			t.Fatalf("%d bytes with a limit of %d", len(got), limit)
		}
		again, err := s2.Compressor.Append(nil, got)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := s2.Compressor.Decompress(nil, again, limit); err != nil || !bytes.Equal(back, got) {
			t.Fatalf("%q came back as %q, error %v", got, back, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	dst := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s2.Compressor.Append(dst, text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecompress(b *testing.B) {
	small, err := s2.Compressor.Append(nil, text)
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s2.Compressor.Decompress(dst, small, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	small, err := s2.Compressor.Append(nil, []byte(strings.Repeat("yodel-ay-ee-", 100)))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = s2.Compressor.Decompress(nil, small, 1000)
	fmt.Println(len(small) < 100, errors.Is(err, compress.ErrTooLarge))
	// Output: true true
}
