// SPDX-License-Identifier: Apache-2.0

package zstd_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	std "github.com/klauspost/compress/zstd"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/klauspost/zstd"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestKeepsTheContract(t *testing.T) { yodeltest.TestCompressor(t, zstd.Compressor) }

var text = []byte(strings.Repeat("a rose is a rose is a rose, and ", 20))

// stream returns text compressed as a stream, which does not say how long it is.
func stream(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := std.NewWriter(&b, std.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	for len(text) > 0 {
		n := min(len(text), 1<<20)
		if _, err := w.Write(text[:n]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFramesWithoutALengthDecompress(t *testing.T) {
	for _, size := range []int{1, 100, 1 << 16, 1<<17 + 1, 3 << 20} {
		want := bytes.Repeat(text, 1+size/len(text))[:size]
		small := stream(t, want)
		got, err := zstd.Compressor.Decompress([]byte("was:"), small, size)
		if err != nil || !bytes.Equal(got, append([]byte("was:"), want...)) {
			t.Errorf("%d bytes came back as %d, error %v", size, len(got)-4, err)
		}
		for _, limit := range []int{0, size / 2, size - 1} {
			if got, err := zstd.Compressor.Decompress(nil, small, limit); !errors.Is(err, compress.ErrTooLarge) {
				t.Errorf("%d bytes with limit %d: got %d bytes and error %v", size, limit, len(got), err)
			}
		}
	}
}

func TestFramesBehindOneAnotherDecompress(t *testing.T) {
	one, err := zstd.Compressor.Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	two := slices.Concat(one, one, stream(t, text))
	want := bytes.Repeat(text, 3)
	if got, err := zstd.Compressor.Decompress(nil, two, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes and error %v, want %d", len(got), err, len(want))
	}
	if _, err := zstd.Compressor.Decompress(nil, two, len(want)-1); !errors.Is(err, compress.ErrTooLarge) {
		t.Errorf("got error %v, want ErrTooLarge", err)
	}
}

func TestAnImpossibleLengthIsNotAllocated(t *testing.T) {
	frame := []byte("\x28\xb5\x2f\xfd\xa0\x00\x00\x00\x40\x01\x00\x00") // 1 GiB in an empty block
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := zstd.Compressor.Decompress(nil, frame, 1<<31-1); err == nil {
		t.Error("got no error")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("allocated %d bytes", n)
	}
}

func FuzzDecompress(f *testing.F) {
	for _, plain := range []string{"", "a", string(text)} {
		b, err := zstd.Compressor.Append(nil, []byte(plain))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		const limit = 1 << 16
		got, err := zstd.Compressor.Decompress(nil, src, limit)
		if err != nil {
			return
		}
		if len(got) > limit {
			t.Fatalf("%d bytes with a limit of %d", len(got), limit)
		}
		again, err := zstd.Compressor.Append(nil, got)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := zstd.Compressor.Decompress(nil, again, limit); err != nil || !bytes.Equal(back, got) {
			t.Fatalf("%q came back as %q, error %v", got, back, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	dst := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := zstd.Compressor.Append(dst, text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecompress(b *testing.B) {
	small, err := zstd.Compressor.Append(nil, text)
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := zstd.Compressor.Decompress(dst, small, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	small, err := zstd.Compressor.Append(nil, []byte(strings.Repeat("yodel-ay-ee-", 100)))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = zstd.Compressor.Decompress(nil, small, 1000)
	fmt.Println(len(small) < 100, errors.Is(err, compress.ErrTooLarge))
	// Output: true true
}
