// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A handler that writes parts of a body sends all of them, also if it neither writes nor returns
// after the last one.
func TestPartsArriveWhileTheHandlerWaits(t *testing.T) {
	over(t, func(t *testing.T, meet func(*testing.T, Config) *peer) {
		for parts := range 40 {
			c := make(oneCall)
			p := meet(t, Config{Handler: c})
			p.greet()
			s, end := p.begun(c, 0)
			if err := s.Header(okHeader); err != nil {
				t.Fatal(err)
			}
			var want []byte
			for i := range parts {
				part := fmt.Appendf(nil, "part %d.", i)
				want = append(want, part...)
				if i%2 == 0 {
					if _, err := s.Write(part); err != nil {
						t.Fatal(err)
					}
				} else if !s.TryWrite(part[:2], part[2:]) {
					t.Fatal("the part waits")
				}
			}
			var got []byte
			for len(got) < len(want) {
				got = append(got, p.awaitFrame("a part", func(f frame) bool { return f.kind == dataFrame }).payload...)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got %q", got)
			}
			end()
			_ = p.over()
		}
	})
}

// The parts that a handler writes in a row share writes of the connection.
func TestPartsInARowShareWrites(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that no goroutine writes each part at once
	const parts = 1000
	c := make(oneCall)
	p := meetTCP(t, Config{Handler: c})
	p.greet(setting{initialWindowSize, 1 << 20})
	p.send(appendWindow(nil, 0, 1<<20))
	s, end := p.begun(c, 0)
	if err := s.Header(okHeader); err != nil {
		t.Fatal(err)
	}
	before := p.conn.direct.count.Load()
	for range parts {
		if !s.TryWrite([]byte("prefix"), make([]byte, 94)) {
			t.Fatal("the part waits")
		}
	}
	if n := p.conn.direct.count.Load() - before; n > parts/10 {
		t.Errorf("%d parts of 100 bytes took %d writes", parts, n)
	}
	end()
	_ = p.over()
}

// TryWrite sends all of a part or nothing of it.
func TestTryWrite(t *testing.T) {
	c := make(oneCall)
	p := meetTCP(t, Config{Handler: c})
	p.greet()
	s, end := p.begun(c, flagEndStream)
	refused := func(why string, n int) {
		t.Helper()
		if s.TryWrite(make([]byte, 5), make([]byte, n)) {
			t.Errorf("a part was sent %s", why)
		}
	}
	refused("before the header", 1)
	if err := s.Header(okHeader); err != nil {
		t.Fatal(err)
	}
	refused("that is longer than a frame", maxFrame-4)
	for range 3 {
		if !s.TryWrite(make([]byte, 5), make([]byte, maxFrame-5)) {
			t.Error("a frame was not sent")
		}
	}
	refused("beyond the window", maxFrame-5)
	if !s.TryWrite(make([]byte, 5), make([]byte, maxFrame-6)) {
		t.Error("the rest of the window was not used")
	}
	if err := s.End(okTrailer); err != nil {
		t.Fatal(err)
	}
	refused("behind the end", 1)
	if body, fields := p.reply(p.id); len(body) != defaultWindow || fmt.Sprint(fields) != okFields {
		t.Errorf("got %d bytes and %v", len(body), fields)
	}
	end()
	_ = p.over()
}

// A pieces replies to a request with its body, which it reads in pieces of many sizes.
type pieces struct{ seed uint64 }

func (pieces) Head(*Stream) Plan { return Plan{} }

func (h pieces) Serve(s *Stream) {
	random := rand.New(rand.NewPCG(h.seed, uint64(s.ID()))) // #nosec G404 -- a test
	_ = s.Header(okHeader)
	for {
		p := make([]byte, 1+random.IntN(1<<random.IntN(17)))
		n, err := io.ReadAtLeast(s, p, 1+random.IntN(len(p)))
		if _, failed := s.Write(p[:n]); failed != nil {
			return
		}
		if err != nil {
			_ = s.End(okTrailer)
			return
		}
	}
}

// A handler gets a body as it is, whether it reads before the parts have arrived or after.
func TestBodiesAreReadInPieces(t *testing.T) {
	over(t, func(t *testing.T, meet func(*testing.T, Config) *peer) {
		for seed := range uint64(4) {
			random := rand.New(rand.NewPCG(seed, 0)) // #nosec G404 -- a test
			p := meet(t, Config{Handler: pieces{seed}, StreamWindow: 1 << 20})
			p.greet(setting{initialWindowSize, 1 << 20})
			p.send(appendWindow(nil, 0, 1<<30-1))
			var ids []uint32
			bodies := make(map[uint32]string)
			for i := range 4 {
				p.send(p.begin(0, "/"))
				ids = append(ids, p.id)
				bodies[p.id] = strings.Repeat(fmt.Sprintf("body %d of %d, ", i, seed), random.IntN(15_000))
			}
			rest := maps.Clone(bodies)
			open := slices.Clone(ids)
			for len(open) > 0 {
				var frames [][]byte
				for range 1 + random.IntN(8) {
					i := random.IntN(len(open))
					id := open[i]
					n := min(len(rest[id]), random.IntN(1<<random.IntN(15)))
					flags := byte(0)
					if n == len(rest[id]) {
						flags = flagEndStream
						open = slices.Delete(open, i, i+1)
					}
					frames = append(frames, raw(dataFrame, flags, id, rest[id][:n]))
					if rest[id] = rest[id][n:]; len(open) == 0 {
						break
					}
				}
				p.send(frames...)
			}
			for _, id := range ids {
				p.check(id, bodies[id])
			}
			if err := p.over(); err != nil {
				t.Error(err)
			}
		}
	})
}
