package mux

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

type echo struct{ inline bool }

func (e *echo) Inline() bool  { return e.inline }
func (e *echo) New() *Request { return new(Request) }
func (e *echo) Serve(r *Request) {
	r.Scratch = append(r.Scratch, r.Body...)
	r.Reply.Body = r.Scratch
}
func (e *echo) Done(*Request, time.Duration, bool) {}

func pair(t testing.TB, inline bool) (*Conn, *Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lim := Limits{MaxMessage: 64 << 20, MaxOpen: 16384, MaxOpenBytes: 256 << 20, MaxMethods: 100, MaxUnsent: 1 << 20, KeepAlive: 10 * time.Second, Handshake: time.Second}
	scfg := &Config{Limits: lim, Pool: NewPool(), Watch: NewWatch(), Bind: func(*Conn, *wire.Binding) (Target, wire.Info) { return &echo{inline}, wire.Info{Known: 1} }}
	ccfg := &Config{Limits: lim, Pool: NewPool(), Watch: NewWatch()}
	ch := make(chan *Conn)
	go func() {
		nc, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		ch <- New(nc, nil, false, scfg)
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := New(nc, nil, true, ccfg)
	s := <-ch
	t.Cleanup(func() { c.Close(); s.Close() })
	return c, s
}

func TestProbe(t *testing.T) {
	for _, inline := range []bool{true, false} {
		c, _ := pair(t, inline)
		m := &Method{Name: "echo", Codec: "raw"}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				for j := range 300 {
					size := j * i
					if j%100 == 0 {
						size = 3 << 20
					}
					body := make([]byte, size)
					for k := range body {
						body[k] = byte(i + j + k)
					}
					a, err := c.Call(context.Background(), &Out{Method: m, Body: body})
					if err != nil {
						t.Error(err)
						return
					}
					if string(a.Body) != string(body) {
						t.Errorf("i %d j %d: %d bytes differ from %d", i, j, len(a.Body), len(body))
					}
					a.Release()
				}
			})
		}
		wg.Wait()
		fmt.Printf("%+v\n", c.Counters())
	}
}

type token struct{ ch chan struct{} }

func (k *token) Complete(a *Answer, err error) {
	if err != nil {
		panic(err)
	}
	k.ch <- struct{}{}
}

func BenchmarkSync(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, s := pair(b, true)
			m := &Method{Name: "echo", Codec: "raw"}
			var wg sync.WaitGroup
			body := make([]byte, 128)
			b.ReportAllocs()
			for range n {
				wg.Go(func() {
					out := &Out{Method: m, Body: body}
					for range b.N / n {
						a, err := c.Call(context.Background(), out)
						if err != nil {
							b.Error(err)
							return
						}
						a.Release()
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(c.Counters().Writes)/float64(b.N), "cw/op")
			b.ReportMetric(float64(s.Counters().Writes)/float64(b.N), "sw/op")
		})
	}
}

func BenchmarkAsync(b *testing.B) {
	c, s := pair(b, true)
	m := &Method{Name: "echo", Codec: "raw"}
	body := make([]byte, 128)
	k := &token{make(chan struct{}, 2000)}
	for range 2000 {
		k.ch <- struct{}{}
	}
	b.ReportAllocs()
	out := &Out{Method: m, Body: body}
	b.ResetTimer()
	for range b.N {
		<-k.ch
		if err := c.Start(context.Background(), out, k); err != nil {
			b.Fatal(err)
		}
	}
	for range 2000 {
		<-k.ch
	}
	b.ReportMetric(float64(c.Counters().Writes)/float64(b.N), "cw/op")
	b.ReportMetric(float64(s.Counters().Writes)/float64(b.N), "sw/op")
}
