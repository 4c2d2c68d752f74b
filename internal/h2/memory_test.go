// SPDX-License-Identifier: Apache-2.0

//go:build !race

package h2

import (
	"bytes"
	"net"
	"runtime"
	"runtime/debug"
	"testing"
)

// An inline call allocates nothing.
func TestAnInlineCallAllocatesNothing(t *testing.T) {
	const calls = 100
	c := newCaller(t, Config{Handler: &echo{}}, "/inline", calls)
	if n := testing.AllocsPerRun(50, func() { c.call(t) }); n > 10 { // the runtime has some of its own
		t.Errorf("%d calls make %v allocations", calls, n)
	}
}

// An idle connection has no buffer.
func TestIdleConnectionsTakeLittleMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(99)) // so that package spares allocates no reserve
	const many, most = 200, 12 << 10                 // with the client's end, which is in the same process
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before := memory()
	for range many {
		here, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		there, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c, served := New(there, Config{Handler: &echo{}}), make(chan struct{})
		go func() {
			defer close(served)
			c.Serve(nil, func(error) {})
		}()
		t.Cleanup(func() {
			here.Close()
			<-served
		})
		p := &peer{}
		block := string(p.head("/inline"))
		sent := append([]byte(preface), appendSettings(nil)...)
		sent = append(append(sent, raw(headersFrame, flagEndHeaders|flagEndStream, 1, block)...), appendPing(nil, 0, [8]byte{})...)
		if _, err := here.Write(sent); err != nil {
			t.Fatal(err)
		}
		pong := appendPing(nil, flagAck, [8]byte{})
		for got := []byte(nil); !bytes.HasSuffix(got, pong); {
			piece := make([]byte, 512)
			n, err := here.Read(piece)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, piece[:n]...)
		}
	}
	each := (int(memory()) - int(before)) / many
	t.Logf("an idle connection takes %d bytes", each)
	if each > most {
		t.Errorf("an idle connection takes %d bytes, want at most %d", each, most)
	}
}

// memory returns the bytes of the heap and of stacks.
func memory() uint64 {
	var m runtime.MemStats
	for range 3 { // what pools hold is dropped by the second collection
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
