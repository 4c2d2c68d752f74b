// SPDX-License-Identifier: Apache-2.0

package records_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/records"
	"github.com/yodel-rpc/yodel/internal/spares"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func frame(msg []byte) []byte {
	return wire.AppendFrame(nil, &wire.Header{Type: wire.Data, Flags: wire.Compressed, ID: 12345}, msg)
}

// wantNext checks the next message that the consumer gets.
func wantNext(t *testing.T, taken *records.Taken, msg []byte, flags wire.Flags, cost uint64) {
	t.Helper()
	gotMsg, gotFlags, gotCost := taken.Next()
	if !bytes.Equal(gotMsg, msg) || gotFlags != flags || gotCost != cost {
		t.Fatalf("got %d bytes, flags %x, cost %d; want %d, %x, %d", len(gotMsg), gotFlags, gotCost, len(msg), flags, cost)
	}
}

func TestMessagesComeInTheirOrder(t *testing.T) {
	const most = 1000
	var b records.Buffer
	var taken records.Taken
	var memory spares.Set
	if !b.Whole() || b.Complete() != 0 || taken.Left() != 0 {
		t.Fatal("an empty buffer has messages")
	}
	b.AddFrames(append(frame([]byte("one")), frame(nil)...), &memory)
	b.Open(8, wire.HasAttachment)
	if b.Whole() || b.Want() != 8 {
		t.Errorf("a message that was opened is whole: %t, and has %d bytes", b.Whole(), b.Want())
	}
	if err := b.AddPiece([]byte("pie"), 15, false, false, &memory); err != nil || b.Pending() != 15 {
		t.Errorf("got %v, and a cost of %d", err, b.Pending())
	}
	taken.Refill(&b, most, &memory)
	wantNext(t, &taken, []byte("one"), wire.Compressed, wire.HeaderSize+3)
	wantNext(t, &taken, nil, wire.Compressed, wire.HeaderSize)
	if taken.Left() != 0 || b.Complete() != 0 || b.Whole() {
		t.Errorf("%d bytes are left, and %d are complete", taken.Left(), b.Complete())
	}
	if cost := b.ConsumePieces(); cost != 15 || b.Pending() != 0 {
		t.Errorf("the pieces cost %d, and then %d", cost, b.Pending())
	}
	if err := b.AddPiece([]byte("ces!!"), 17, true, true, &memory); err != nil || !b.Whole() {
		t.Errorf("got %v", err)
	}
	b.AddFrames(frame([]byte("last")), &memory)
	taken.Refill(&b, most, &memory)
	wantNext(t, &taken, []byte("pieces!!"), wire.HasAttachment, 17) // the rest was consumed before
	wantNext(t, &taken, []byte("last"), wire.Compressed, wire.HeaderSize+4)
	b.Free(&memory)
	taken.Free(nil)
	if b.Complete() != 0 || taken.Left() != 0 {
		t.Error("memory that was given away is still used")
	}
}

func TestTheAnnouncedSizeIsWrong(t *testing.T) {
	var b records.Buffer
	var memory spares.Set
	b.AddFrames(frame([]byte("before")), &memory)
	b.Open(3, 0)
	if err := b.AddPiece([]byte("four"), 1, true, false, &memory); !errors.Is(err, collect.ErrLonger) {
		t.Errorf("got %v, want %v", err, collect.ErrLonger)
	}
	if err := b.AddPiece([]byte("2"), 1, true, false, &memory); !errors.Is(err, collect.ErrShorter) {
		t.Errorf("got %v, want %v", err, collect.ErrShorter)
	}
	b.Cut()
	if !b.Whole() || b.Want() != 0 || b.Pending() != 0 {
		t.Error("the broken message is still there")
	}
	var taken records.Taken
	taken.Refill(&b, 1000, &memory)
	wantNext(t, &taken, []byte("before"), wire.Compressed, wire.HeaderSize+6)
}

// Whatever sizes arrive in whatever pieces, the consumer gets the same messages.
func TestAnyMessages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var b records.Buffer
	var taken records.Taken
	var memory spares.Set
	var waiting [][]byte
	got := 0
	consume := func() {
		for taken.Left() > 0 || b.Complete() > 0 {
			if taken.Left() == 0 {
				taken.Refill(&b, 100_000, &memory)
			}
			msg, _, _ := taken.Next()
			if !bytes.Equal(msg, waiting[0]) {
				t.Fatalf("message %d has %d bytes, want %d", got, len(msg), len(waiting[0]))
			}
			waiting = waiting[1:]
			got++
		}
	}
	for i := range 500 {
		msg := bytes.Repeat(fmt.Appendf(nil, "%d ", i), 1+r.IntN(1<<r.IntN(17)))
		waiting = append(waiting, msg)
		if r.IntN(2) == 0 {
			b.AddFrames(frame(msg), &memory)
		} else {
			b.Open(len(msg), 0)
			for last := false; !last; {
				n := min(len(msg), 1+r.IntN(60_000))
				last = n == len(msg)
				if err := b.AddPiece(msg[:n], uint64(n), last, r.IntN(2) == 0, &memory); err != nil {
					t.Fatal(err)
				}
				if msg = msg[n:]; r.IntN(3) == 0 {
					b.ConsumePieces()
					consume()
				}
			}
		}
		if r.IntN(3) == 0 {
			consume()
		}
	}
	if consume(); got != 500 {
		t.Errorf("got %d messages", got)
	}
}
