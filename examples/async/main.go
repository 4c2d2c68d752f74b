// SPDX-License-Identifier: Apache-2.0

// Command async makes calls without waiting for each: with futures, with a callback, one-way, and
// many within a window.
//
//	go run ./examples/async
//
// It prints:
//
//	futures   2 squared is 4, 3 squared is 9
//	callback  4 squared is 16
//	one-way   the server noted "done"
//	window    200 calls, at most 8 at once: true
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// width is how many calls may be open at once. By default, it is 8,192 for each connection.
const width = 8

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := &service{noted: make(chan string)}
	ended := make(chan error)
	go func() { ended <- s.newServer().Serve(ctx, l) }()

	c := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{Limits: yodel.Limits{MaxOpen: width}})
	futures(ctx, c)
	callback(ctx, c)
	oneWay(ctx, c, s)
	window(ctx, c, s)
	c.Close()

	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

// futures waits for the replies when all requests are on their way.
func futures(ctx context.Context, c *yodel.Client) {
	two, three := 2, 3
	a, b := Square.Go(ctx, c, &two), Square.Go(ctx, c, &three)
	fmt.Printf("futures   2 squared is %d, 3 squared is %d\n", valueOf(a.Get()), valueOf(b.Get()))
}

// callback has a function called with the reply. It should be short, for the next replies wait for
// it.
func callback(ctx context.Context, c *yodel.Client) {
	four, called := 4, make(chan struct{})
	Square.Then(ctx, c, &four, func(reply *int, err error) {
		fmt.Println("callback  4 squared is", valueOf(reply, err))
		close(called)
	})
	<-called
}

// oneWay sends a request that gets no reply. All that the client knows is that it was queued for
// sending.
func oneWay(ctx context.Context, c *yodel.Client, s *service) {
	line := "done"
	if err := Note.Notify(ctx, c, &line); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("one-way   the server noted %q\n", <-s.noted)
}

// window begins many calls and leaves it to the client how many of them are open. The others wait
// for their turn.
func window(ctx context.Context, c *yodel.Client, s *service) {
	const calls = 200
	var wg sync.WaitGroup
	wg.Add(calls)
	for i := range calls {
		Square.Then(ctx, c, &i, func(reply *int, err error) {
			valueOf(reply, err)
			wg.Done()
		})
	}
	wg.Wait()
	fmt.Printf("window    %d calls, at most %d at once: %t\n", calls, width, s.count(0) <= width)
}

// valueOf ends the program when the call failed.
func valueOf(reply *int, err error) int {
	if err != nil {
		log.Fatal(err)
	}
	return *reply
}
