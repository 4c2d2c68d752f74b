// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

type Args struct{ A, B int }
type Reply struct{ C int }

const Mul yodel.Method[Args, Reply] = "Arith.Mul"

type Arith struct{}

func (Arith) Mul(ctx context.Context, in *Args) (*Reply, error) { return &Reply{in.A * in.B}, nil }
func (Arith) Add(in Args, out *int) error                       { *out = in.A + in.B; return nil }
func (Arith) DivMod(a, b int) (int, int, error) {
	if b == 0 {
		return 0, 0, yodel.Errorf(yodel.InvalidArgument, "division by zero")
	}
	return a / b, a % b, nil
}

func TestSmoke(t *testing.T) {
	s := yodel.NewServer(nil)
	if err := s.Register(Arith{}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	c := yodel.Dial(l.Addr().String())
	r, err := Mul.Call(ctx, c, &Args{7, 8})
	fmt.Println(r, err)
	var sum int
	fmt.Println(c.Call(ctx, "Arith.Add", &Args{1, 2}, &sum), sum)
	var q, rem int
	fmt.Println(c.Call(ctx, "Arith.DivMod", yodel.Values{17, 5}, yodel.Values{&q, &rem}), q, rem)
	fmt.Println(c.Call(ctx, "Arith.DivMod", yodel.Values{17, 0}, yodel.Values{&q, &rem}), q, rem)
	fmt.Println(c.Call(ctx, "Arith.mul", yodel.Values{17, 0}, nil))
	fmt.Printf("%+v\n", c.Call(ctx, "Arith.Mul", "hi", nil))
	f := Mul.Go(ctx, c, &Args{3, 4})
	fmt.Println(f.Get())
	var wg sync.WaitGroup
	wg.Add(1)
	Mul.Then(ctx, c, &Args{5, 4}, func(r *Reply, err error) { fmt.Println(r, err); wg.Done() })
	wg.Wait()
	st, err := yodel.GetStats.Call(ctx, c, &yodel.Empty{})
	fmt.Printf("%+v %v\n", st, err)
	cancel()
	fmt.Println(<-served)
	start := time.Now()
	fmt.Println(c.Call(context.Background(), "Arith.Add", &Args{1, 2}, &sum), sum, time.Since(start))
	c.Close()
	fmt.Println(c.Call(context.Background(), "Arith.Add", &Args{1, 2}, &sum), sum)
}
