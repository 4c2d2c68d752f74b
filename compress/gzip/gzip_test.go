// SPDX-License-Identifier: Apache-2.0

package gzip_test

import (
	"bytes"
	std "compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestKeepsTheContract(t *testing.T) { yodeltest.TestCompressor(t, gzip.Compressor) }

func TestAnyLevelDecompressesWhatAnotherCompressed(t *testing.T) {
	text := []byte(strings.Repeat("a rose is a rose is a rose, and ", 1000))
	for _, level := range []int{std.HuffmanOnly, std.DefaultCompression, std.NoCompression, std.BestSpeed, 5, std.BestCompression} {
		small, err := gzip.Level(level).Append(nil, text)
		if err != nil {
			t.Fatalf("level %d: %v", level, err)
		}
		if got, err := gzip.Compressor.Decompress(nil, small, len(text)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("level %d: got %d of %d bytes, error %v", level, len(got), len(text), err)
		}
	}
}

func TestLevelSaysWhatItMeans(t *testing.T) {
	text := []byte(strings.Repeat("a rose is a rose is a rose, and ", 1000))
	fast, err := gzip.Level(std.NoCompression).Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	small, err := gzip.Level(std.BestCompression).Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	if len(fast) < len(text) || len(small) > len(text)/10 {
		t.Errorf("%d bytes became %d without compression and %d at best", len(text), len(fast), len(small))
	}
}

func TestLevelRefusesOthers(t *testing.T) {
	defer func() {
		if got := recover(); got != "yodel: gzip has no level 10" {
			t.Errorf("got %v, want a panic that names the level", got)
		}
	}()
	gzip.Level(10)
}

func TestInteroperatesWithTheStandardLibrary(t *testing.T) {
	text := []byte(strings.Repeat("a rose is a rose is a rose, and ", 1000))
	small, err := gzip.Compressor.Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := std.NewReader(bytes.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, text) {
		t.Errorf("compress/gzip read %d bytes, error %v", len(got), err)
	}
	var theirs bytes.Buffer
	w := std.NewWriter(&theirs)
	_, _ = w.Write(text)
	_ = w.Close()
	if got, err := gzip.Compressor.Decompress(nil, theirs.Bytes(), len(text)); err != nil || !bytes.Equal(got, text) {
		t.Errorf("got %d bytes of what compress/gzip wrote, error %v", len(got), err)
	}
}

func FuzzDecompress(f *testing.F) {
	for _, text := range []string{"", "a", strings.Repeat("a rose is ", 100)} {
		b, err := gzip.Compressor.Append(nil, []byte(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		const limit = 1 << 16
		got, err := gzip.Compressor.Decompress(nil, src, limit)
		if err != nil {
			return
		}
		if len(got) > limit {
			t.Fatalf("%d bytes with a limit of %d", len(got), limit)
		}
		again, err := gzip.Compressor.Append(nil, got)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := gzip.Compressor.Decompress(nil, again, limit); err != nil || !bytes.Equal(back, got) {
			t.Fatalf("%q came back as %q, error %v", got, back, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	text := []byte(strings.Repeat("a rose is a rose is a rose, and ", 20))
	dst := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := gzip.Compressor.Append(dst, text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecompress(b *testing.B) {
	text := []byte(strings.Repeat("a rose is a rose is a rose, and ", 20))
	small, err := gzip.Compressor.Append(nil, text)
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := gzip.Compressor.Decompress(dst, small, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	small, err := gzip.Compressor.Append(nil, []byte(strings.Repeat("yodel-ay-ee-", 100)))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = gzip.Compressor.Decompress(nil, small, 1000)
	fmt.Println(len(small) < 100, errors.Is(err, compress.ErrTooLarge))
	// Output: true true
}
