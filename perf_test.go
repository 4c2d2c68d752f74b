package yodel_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
)

func benchPair(b *testing.B, codec yodel.Codec) *yodel.Client {
	s := yodel.NewServer(nil)
	echo := yodel.Method[[]byte, []byte]("echo")
	echo.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	go s.Serve(context.Background(), l)
	c := yodel.NewClient(yodel.Static(l.Addr().String()), &yodel.ClientOptions{Codec: codec})
	b.Cleanup(func() { c.Close(); s.Shutdown(context.Background()) })
	return c
}

func BenchmarkPerfSync(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := benchPair(b, yodel.Raw)
			b.ReportAllocs()
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					body := make([]byte, 128)
					out := make([]byte, 0, 128)
					for range b.N / n {
						if err := c.Call(context.Background(), "echo", &body, &out); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

func BenchmarkPerfAsync(b *testing.B) {
	c := benchPair(b, yodel.Raw)
	const window = 2000
	type slot struct {
		call yodel.Call
		out  []byte
		done func(error)
	}
	free := make(chan *slot, window)
	body := make([]byte, 128)
	for range window {
		s := &slot{}
		s.done = func(err error) {
			if err != nil {
				b.Error(err)
			}
			free <- s
		}
		free <- s
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		s := <-free
		s.call = yodel.Call{Method: "echo", Args: &body, Reply: &s.out}
		c.Go(context.Background(), &s.call, s.done)
	}
	for range window {
		<-free
	}
}
