// SPDX-License-Identifier: Apache-2.0

package zlib_test

import (
	"bytes"
	std "compress/zlib"
	"io"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/compress/zlib"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestKeepsTheContract(t *testing.T) { yodeltest.TestCompressor(t, zlib.Compressor) }

func TestLevelRefusesOthers(t *testing.T) {
	defer func() {
		if got := recover(); got != "yodel: zlib has no level 10" {
			t.Errorf("got %v, want a panic that names the level", got)
		}
	}()
	zlib.Level(10)
}

func TestInteroperatesWithTheStandardLibrary(t *testing.T) {
	text := []byte(strings.Repeat("a rose is a rose is a rose, and ", 1000))
	small, err := zlib.Level(std.BestCompression).Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := std.NewReader(bytes.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, text) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	var b bytes.Buffer
	w := std.NewWriter(&b)
	_, _ = w.Write(text) // a bytes.Buffer does not fail
	_ = w.Close()
	if got, err := zlib.Compressor.Decompress(nil, b.Bytes(), len(text)); err != nil || !bytes.Equal(got, text) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

func FuzzDecompress(f *testing.F) {
	small, err := zlib.Compressor.Append(nil, []byte("a rose is a rose"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small)
	f.Fuzz(func(t *testing.T, src []byte) {
		if got, err := zlib.Compressor.Decompress(nil, src, 1<<16); err == nil && len(got) > 1<<16 {
			t.Errorf("got %d bytes", len(got))
		}
	})
}
