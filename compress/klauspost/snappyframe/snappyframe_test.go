// SPDX-License-Identifier: Apache-2.0

package snappyframe_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/klauspost/snappyframe"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// The contract includes that damage is an error, for which the format needs an end mark.
func TestKeepsTheContract(t *testing.T) {
	yodeltest.TestCompressor(t, marked{snappyframe.Compressor})
}

// A marked adds the length of the compressed bytes behind them.
type marked struct{ compress.Compressor }

func (m marked) Append(dst, src []byte) ([]byte, error) {
	b, err := m.Compressor.Append(dst, src)
	if err != nil {
		return nil, err
	}
	return binary.BigEndian.AppendUint32(b, uint32(len(b)-len(dst))), nil
}

func (m marked) Decompress(dst, src []byte, limit int) ([]byte, error) {
	n := len(src) - 4
	if n < 0 || binary.BigEndian.Uint32(src[n:]) != uint32(n) {
		return nil, io.ErrUnexpectedEOF
	}
	return m.Compressor.Decompress(dst, src[:n], limit)
}

func TestInteroperatesWithTheLibrary(t *testing.T) {
	text := []byte(strings.Repeat("a rose is a rose is a rose, and ", 1000))
	small, err := snappyframe.Compressor.Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(snappy.NewReader(bytes.NewReader(small))); err != nil || !bytes.Equal(got, text) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	var b bytes.Buffer
	w := snappy.NewBufferedWriter(&b)
	_, _ = w.Write(text) // a bytes.Buffer does not fail
	_ = w.Close()
	if got, err := snappyframe.Compressor.Decompress(nil, b.Bytes(), len(text)); err != nil || !bytes.Equal(got, text) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

func FuzzDecompress(f *testing.F) {
	small, err := snappyframe.Compressor.Append(nil, []byte("a rose is a rose"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small)
	f.Fuzz(func(t *testing.T, src []byte) {
		if got, err := snappyframe.Compressor.Decompress(nil, src, 1<<16); err == nil && len(got) > 1<<16 {
			t.Errorf("got %d bytes", len(got))
		}
	})
}
