// SPDX-License-Identifier: Apache-2.0

package bounded_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/internal/bounded"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestAppendStopsBehindTheLimit(t *testing.T) {
	const text = "forty-two bytes of text, no more, no less."
	tests := []struct {
		name  string
		room  int
		limit int
		want  error
	}{
		{"exactly the limit", 0, len(text), nil},
		{"exactly the limit and the room", len(text), len(text), nil},
		{"one byte too many", 0, len(text) - 1, compress.ErrTooLarge},
		{"one byte too many for the room as well", len(text) - 1, len(text) - 1, compress.ErrTooLarge},
		{"much room", 1000, 3, compress.ErrTooLarge},
		{"nothing allowed", 1000, 0, compress.ErrTooLarge},
	}
	readers := map[string]func(io.Reader) io.Reader{
		"whole":      func(r io.Reader) io.Reader { return r },
		"bytewise":   iotest.OneByteReader,
		"early ends": iotest.DataErrReader,
	}
	for _, test := range tests {
		for how, reader := range readers {
			t.Run(test.name+"/"+how, func(t *testing.T) {
				dst := append(make([]byte, 0, 4+test.room), "was:"...)
				got, err := bounded.Append(dst, reader(strings.NewReader(text)), test.limit)
				if !errors.Is(err, test.want) {
					t.Fatalf("got error %v, want %v", err, test.want)
				}
				if err == nil && string(got) != "was:"+text {
					t.Errorf("got %q, want %q", got, "was:"+text)
				}
			})
		}
	}
}

func TestAppendReadsNoMoreThanOneByteBehindTheLimit(t *testing.T) {
	endless := bytes.NewReader(make([]byte, 1<<20))
	if _, err := bounded.Append(make([]byte, 0, 1<<20), endless, 100); !errors.Is(err, compress.ErrTooLarge) {
		t.Errorf("got error %v, want ErrTooLarge", err)
	}
	if read := 1<<20 - endless.Len(); read != 101 {
		t.Errorf("read %d bytes, want 101", read)
	}
}

func TestAppendReturnsTheReadersError(t *testing.T) {
	want := errors.New("broken")
	if _, err := bounded.Append(nil, iotest.ErrReader(want), 100); !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// A message that is as large as may be costs twice that in allocations, not six times, as growing
// slices with append does.
func TestAppendAllocatesTwiceTheLimitAtMost(t *testing.T) {
	for _, limit := range []int{100, 100_000, 1 << 20, 16 << 20} {
		for _, size := range []int{limit / 3, limit, limit + 1, 2 * limit} {
			src := bytes.NewReader(make([]byte, size))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := bounded.Append(nil, src, limit)
			runtime.ReadMemStats(&after)
			if (err == nil) != (size <= limit) || err == nil && len(got) != size {
				t.Errorf("%d bytes, limit %d: got %d, error %v", size, limit, len(got), err)
			}
			if n, most := after.TotalAlloc-before.TotalAlloc, uint64(limit)*5/2+16<<10; n > most {
				t.Errorf("%d bytes, limit %d: %d bytes were allocated, want at most %d", size, limit, n, most)
			}
		}
	}
}
