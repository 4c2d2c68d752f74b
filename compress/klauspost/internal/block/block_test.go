// SPDX-License-Identifier: Apache-2.0

package block

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/klauspost/compress/s2"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A length that is a lie costs nothing, and a true one that is as large is decompressed.
func TestAnAnnouncedLengthIsCheckedFirst(t *testing.T) {
	const limit = 16 << 20
	true16 := s2.Encode(nil, make([]byte, limit))
	if len(true16) > 200 {
		t.Fatalf("16 MiB of zeros took %d bytes: this tests nothing", len(true16))
	}
	for name, src := range map[string][]byte{
		"nothing behind it": binary.AppendUvarint(nil, limit),
		"one byte":          append(binary.AppendUvarint(nil, limit), 0, 'x'),
		"one byte less":     true16[:len(true16)-1],
		"one element less":  append(binary.AppendUvarint(nil, limit), true16[4:len(true16)-5]...),
		"a copy of nothing": append(binary.AppendUvarint(nil, limit), bytes.Repeat([]byte{0b00011101, 0, 255, 255, 255}, 10)...),
	} {
		var err error
		if n := allocated(func() { _, err = Decompress(nil, src, limit) }); err == nil || n > 64<<10 {
			t.Errorf("%s: got error %v, and %d bytes were allocated", name, err, n)
		}
	}
	got, err := Decompress(nil, true16, limit)
	if err != nil || !bytes.Equal(got, make([]byte, limit)) {
		t.Errorf("16 MiB of zeros: got %d bytes, error %v", len(got), err)
	}
	if _, err := Decompress(nil, true16, limit-1); !errors.Is(err, compress.ErrTooLarge) {
		t.Errorf("one byte too many: got %v", err)
	}
}

// What decodesTo says is what the decoder finds out.
func FuzzDecodesTo(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(s2.Encode(nil, make([]byte, 100_000)))
	f.Add(s2.EncodeBest(nil, bytes.Repeat([]byte("a rose is a rose is a rose, and "), 1000)))
	f.Add(s2.EncodeSnappy(nil, bytes.Repeat([]byte("a rose is a rose is a rose, and "), 1000)))
	f.Add(append(binary.AppendUvarint(nil, 10), 0, 'x', 0b00011101, 0, 1, 2, 3))
	f.Fuzz(func(t *testing.T, src []byte) {
		n, err := s2.DecodedLen(src)
		if err != nil || n > 1<<20 {
			return
		}
		_, err = s2.Decode(nil, src)
		if says := decodesTo(src, n); says != (err == nil) {
			t.Errorf("%x: decodesTo said %v, the decoder %v", src, says, err)
		}
	})
}
