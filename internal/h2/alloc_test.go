// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
)

// A caller makes batches of calls whose bytes were made before.
type caller struct {
	nc    net.Conn
	batch []byte
	at    []int // where the numbers of the streams stand
	id    uint32
	reply []byte
}

// newCaller returns a caller whose batches have n calls of path. Each has a body of 100 bytes.
func newCaller(t testing.TB, cfg Config, path string, n int) *caller {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := &caller{id: 1}
	if c.nc, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	there, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn, served := New(there, cfg), make(chan struct{})
	go func() {
		defer close(served)
		conn.Serve(nil, func(error) {})
	}()
	t.Cleanup(func() {
		c.nc.Close()
		<-served
	})
	p := &peer{}
	block := string(p.head(path, Field{Name: "te", Value: "trailers", Form: Repeated}))
	c.send(t, append(append([]byte(preface), appendSettings(nil)...), appendWindow(nil, 0, 1<<30)...))
	c.send(t, append(raw(headersFrame, flagEndHeaders, 1, block), raw(dataFrame, flagEndStream, 1, string(make([]byte, 100)))...))
	block = string(p.head(path, Field{Name: "te", Value: "trailers", Form: Repeated})) // of indices now
	own := appendSettings(nil, setting{}, setting{}, setting{})
	c.read(t, len(own)+2*frameHeader+4)
	c.read(t, len(raw(headersFrame, 0, 1, ""))+1+1+1+16+1+100+2*frameHeader+1+11+1+1)
	for range n {
		c.at = append(c.at, len(c.batch)+5)
		c.batch = append(c.batch, raw(headersFrame, flagEndHeaders, 1, block)...)
		c.at = append(c.at, len(c.batch)+5)
		c.batch = append(c.batch, raw(dataFrame, flagEndStream, 1, string(make([]byte, 100)))...)
	}
	c.reply = make([]byte, n*(3*frameHeader+2+100+1))
	return c
}

func (c *caller) send(t testing.TB, b []byte) {
	if _, err := c.nc.Write(b); err != nil {
		t.Fatal(err)
	}
}

func (c *caller) read(t testing.TB, n int) {
	if _, err := io.ReadFull(c.nc, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// call makes one batch of calls.
func (c *caller) call(t testing.TB) {
	for i, at := range c.at {
		if i%2 == 0 {
			c.id += 2
		}
		binary.BigEndian.PutUint32(c.batch[at:], c.id)
	}
	c.send(t, c.batch)
	if _, err := io.ReadFull(c.nc, c.reply); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkCalls(b *testing.B) {
	for _, path := range []string{"/inline", "/whole"} {
		b.Run(path[1:], func(b *testing.B) {
			const batch = 100
			c := newCaller(b, Config{Handler: &echo{}}, path, batch)
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += batch {
				c.call(b)
			}
		})
	}
}
