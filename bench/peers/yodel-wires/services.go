// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/yodel-wires/suite"
)

// The methods of ../suite.proto and ../wires.proto that the clients in ../grpc-go and ../connect-go
// call, but for Message.
const (
	echo   yodel.Method[suite.Body, suite.Body]                             = "yodel.bench.Suite/Echo"
	feed   yodel.Feed[suite.Order, suite.Body]                              = "yodel.bench.Suite/Stream"
	wait   yodel.Method[message.BenchmarkMessage, message.BenchmarkMessage] = "yodel.bench.Wires/Wait"
	duplex yodel.Duplex[suite.Body, suite.Body]                             = "yodel.bench.Wires/Duplex"
)

func handleServices(s *yodel.Server) {
	echo.Handle(s, func(_ context.Context, in *suite.Body) (*suite.Body, error) { return in, nil })
	feed.Handle(s, func(_ context.Context, in *suite.Order, send yodel.Send[suite.Body]) error {
		for range in.Messages {
			if err := send(&suite.Body{Data: in.Data}); err != nil {
				return err
			}
		}
		return nil
	})
	wait.Handle(s, func(ctx context.Context, in *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
		time.Sleep(peer.Pause)
		return answer(ctx, in)
	})
	duplex.Handle(s, func(_ context.Context, recv yodel.Recv[suite.Body], send yodel.Send[suite.Body]) error {
		for m, err := range recv {
			if err != nil {
				return err
			}
			if err := send(m); err != nil {
				return err
			}
		}
		return nil
	})
}
