// SPDX-License-Identifier: Apache-2.0

package framebody_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// A budget is a Memory of a size.
type budget struct{ size, held, most int }

func (b *budget) Reserve(n int) bool {
	if b.held+n > b.size {
		return false
	}
	b.held += n
	b.most = max(b.most, b.held)
	return true
}

func (b *budget) Release(n int) { b.held -= n }

func TestRead(t *testing.T) {
	for _, n := range []int{0, 1, 64 << 10, 64<<10 + 1, 1 << 20} {
		m := &budget{size: 4 << 20}
		whole := bytes.Repeat([]byte("body"), n/4+1)[:n]
		got, err := framebody.Read([]byte("head "), bytes.NewReader(append(whole, "more"...)), n, m)
		if err != nil || string(got) != "head "+string(whole) {
			t.Errorf("%d bytes: got %d bytes, %v", n, len(got), err)
		}
		if m.held != cap(got) {
			t.Errorf("%d bytes: %d are counted, and the result has %d", n, m.held, cap(got))
		}
	}
}

// A body that is announced and not sent takes no more memory than its first part.
func TestReadCountsWhatHasArrived(t *testing.T) {
	for sent, most := range map[int]int{0: 64 << 10, 10: 64 << 10, 64<<10 + 1: 320 << 10} {
		m := &budget{size: 1 << 30}
		if _, err := framebody.Read(nil, strings.NewReader(strings.Repeat("x", sent)), 512<<20, m); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: got %v", sent, err)
		}
		if m.most > most || m.held != 0 {
			t.Errorf("%d bytes took up to %d bytes of memory, want %d, and hold %d at the end", sent, m.most, most, m.held)
		}
	}
}

// A body for which there is no memory is refused before it is read, and can be skipped.
func TestReadWithoutMemory(t *testing.T) {
	const n = 1 << 20
	for size, read := range map[int]int{0: 0, 64 << 10: 64 << 10, 400 << 10: 256 << 10} {
		m := &budget{size: size}
		from := strings.NewReader(strings.Repeat("x", n) + "next")
		_, err := framebody.Read(nil, from, n, m)
		refused, ok := errors.AsType[*framebody.RefusedError](err)
		if !ok || refused.Left != n-read || m.held != 0 {
			t.Fatalf("with %d bytes of memory: got %v, %+v, and %d bytes are held", size, err, refused, m.held)
		}
		if err := framebody.Skip(from, refused.Left); err != nil {
			t.Error(err)
		}
		if rest, _ := io.ReadAll(from); string(rest) != "next" {
			t.Errorf("with %d bytes of memory: behind the body is %.20q", size, rest)
		}
	}
}

func TestSkip(t *testing.T) {
	if err := framebody.Skip(strings.NewReader("abc"), 4); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
}
