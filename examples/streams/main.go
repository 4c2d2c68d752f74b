// SPDX-License-Identifier: Apache-2.0

// Command streams calls a method of each kind that has a stream: a feed from the server, an upload
// to it, and both at once.
//
//	go run ./examples/streams
//
// It prints:
//
//	feed    GOOG 100
//	feed    GOOG 101
//	feed    GOOG 102
//	upload  3 orders, 60 shares
//	duplex  GOOG? 100
//	duplex  IBM? 200
package main

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/yodel-rpc/yodel"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := yodel.NewServer(nil)
	market := &market{prices: map[string]int{"GOOG": 100, "IBM": 200}}
	market.register(s)
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l) }()

	c := yodel.Dial(l.Addr().String())
	for _, call := range []func(context.Context, *yodel.Client) error{feed, upload, duplex} {
		if err := call(ctx, c); err != nil {
			log.Fatal(err)
		}
	}
	c.Close()

	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

// feed prints three prices of a feed that has no end: leaving the loop cancels the call.
func feed(ctx context.Context, c *yodel.Client) error {
	// region watch
	n := 0
	for tick, err := range Watch.Call(ctx, c, &Query{Symbol: "GOOG"}) {
		if err != nil {
			return err // the last round of a feed that failed
		}
		fmt.Println("feed   ", tick.Symbol, tick.Price)
		if n++; n == 3 {
			break // the server is told
		}
	}
	// endregion watch
	return nil
}

// upload sends orders and gets one receipt.
func upload(ctx context.Context, c *yodel.Client) error {
	// region upload
	receipt, err := Buy.Call(ctx, c, func(send yodel.Send[Order]) error {
		for _, shares := range []int{10, 20, 30} {
			if err := send(&Order{Symbol: "IBM", Shares: shares}); err != nil {
				return err
			}
		}
		return nil // no more orders: now the server replies
	})
	// endregion upload
	if err != nil {
		return err
	}
	fmt.Printf("upload  %d orders, %d shares\n", receipt.Orders, receipt.Shares)
	return nil
}

// duplex asks, and waits for the answer before it asks again. It could do both at once too, on two
// goroutines.
func duplex(ctx context.Context, c *yodel.Client) error {
	return Ask.Call(ctx, c, func(recv yodel.Recv[Tick], send yodel.Send[Query]) error {
		for _, symbol := range []string{"GOOG", "IBM"} {
			if err := send(&Query{Symbol: symbol}); err != nil {
				return err
			}
			tick, err := recv.Next()
			if err != nil {
				return err
			}
			fmt.Printf("duplex  %s? %d\n", tick.Symbol, tick.Price)
		}
		return nil
	})
}
