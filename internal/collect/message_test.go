// SPDX-License-Identifier: Apache-2.0

package collect_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/spares"
)

// A peer is a connection whose peer sends messages in pieces.
type peer struct {
	t     *testing.T
	mu    sync.Mutex
	all   *memory.Limit
	count memory.Account
	spare spares.Set
}

func newPeer(t *testing.T, limit int) *peer {
	t.Helper()
	p := &peer{t: t, all: memory.NewLimit(64 << 20)}
	p.count.Init(p.all, limit)
	return p
}

func (p *peer) message() *collect.Message {
	return &collect.Message{Of: collect.Memory{Mu: &p.mu, Account: &p.count, Spares: &p.spare}}
}

// wantNothing checks that no memory is counted.
func (p *peer) wantNothing() {
	p.t.Helper()
	p.count.Close()
	if used := p.all.Used(); used != 0 {
		p.t.Errorf("%d bytes are counted in the end", used)
	}
}

// pieces are n bytes, of which no two pieces are the same.
func pieces(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

func TestAMessageIsCollected(t *testing.T) {
	const piece = 60_000
	for _, size := range []int{10, 5000, piece, 300_000, 5 << 20} {
		p := newPeer(t, 0)
		m := p.message()
		all := pieces(size)
		first := min(size-5, piece)
		if !m.Begin(all[:5], size, first) {
			t.Fatal(m.Err)
		}
		moves, at := 0, -1
		for from := 5; from < size; from += first {
			first = min(size-from, piece)
			m.Add(all[from : from+first])
			if cap(m.Buf) != at {
				moves, at = moves+1, cap(m.Buf)
			}
			if most := max(16*(from+first), collect.FirstGrant); cap(m.Buf) > most && from+first <= collect.FirstGrant {
				t.Errorf("%d bytes of %d have arrived, and the memory has %d", from+first, size, cap(m.Buf))
			}
		}
		m.Complete()
		if m.Err != nil || !bytes.Equal(m.Buf, all) {
			t.Errorf("a message of %d bytes: got %d, %v", size, len(m.Buf), m.Err)
		}
		if moves > 3 {
			t.Errorf("a message of %d bytes had %d memories", size, moves)
		}
		p.mu.Lock()
		taken := m.TakeOverLocked()
		p.mu.Unlock()
		if taken < size || taken > 2*size+4096 {
			t.Errorf("%d bytes are counted for a message of %d", taken, size)
		}
		p.count.Give(taken)
		m.Drop() // it is not counted twice
		p.wantNothing()
	}
}

// Peers announce what they do not send.
func TestTheAnnouncedSizeIsWrong(t *testing.T) {
	p := newPeer(t, 0)
	longer, shorter := p.message(), p.message()
	longer.Begin(nil, 10, 5)
	longer.Add(make([]byte, 5))
	if longer.Add(make([]byte, 6)); !errors.Is(longer.Err, collect.ErrLonger) {
		t.Errorf("got %v, want %v", longer.Err, collect.ErrLonger)
	}
	shorter.Begin(nil, 10, 5)
	shorter.Add(make([]byte, 9))
	if shorter.Complete(); !errors.Is(shorter.Err, collect.ErrShorter) {
		t.Errorf("got %v, want %v", shorter.Err, collect.ErrShorter)
	}
	huge := p.message()
	if huge.Begin(nil, 1<<40, 1000); cap(huge.Buf) > 4096 {
		t.Errorf("the memory for 1000 bytes has %d", cap(huge.Buf))
	}
	for _, m := range []*collect.Message{longer, shorter, huge} {
		m.Drop()
	}
	p.wantNothing()
}

func TestAMessageBeyondTheMemoryFails(t *testing.T) {
	p := newPeer(t, 100_000)
	m := p.message()
	m.Begin(nil, 200_000, 5000)
	for range 40 {
		if m.Err == nil {
			m.Add(make([]byte, 5000))
		}
	}
	if !errors.Is(m.Err, memory.ErrFull) {
		t.Errorf("got %v, want %v", m.Err, memory.ErrFull)
	}
	m.Drop()
	p.wantNothing()
}

// The memory of a dropped message is counted until the reader no longer reads into it.
func TestADroppedMessageIsFilled(t *testing.T) {
	p := newPeer(t, 0)
	m := p.message()
	m.Begin(make([]byte, 10), 10<<20, 0)
	m.MakeRoom(50_000)
	m.Fill()
	if m.Dropped() {
		t.Error("the message is dropped before it was")
	}
	if m.Drop(); !m.Dropped() || p.all.Used() < 50_000 {
		t.Errorf("%d bytes are counted while the reader reads", p.all.Used())
	}
	m.Filled()
	if p.count.Trim(); p.all.Used() >= 50_000 {
		t.Errorf("%d bytes are counted although the reader no longer reads", p.all.Used())
	}
	if m.MakeRoom(300_000) || m.Err == nil {
		t.Error("a dropped message gets more memory")
	}
	p.wantNothing()

	p = newPeer(t, 0)
	m = p.message()
	m.Begin(nil, 100_000, 50_000)
	m.Fill()
	m.Filled()
	m.Drop()
	p.wantNothing()

	var none *collect.Message
	none.DropLocked()
	(&collect.Message{Err: errors.New("unwanted")}).Drop()
}
