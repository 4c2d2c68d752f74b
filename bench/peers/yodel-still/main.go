// SPDX-License-Identifier: Apache-2.0

// The peer yodel without polling: neither side looks for the next message before it sleeps. What
// polling gains and costs is the difference to the peer yodel.
package main

import (
	"context"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
)

const say yodel.Method[message.BenchmarkMessage, message.BenchmarkMessage] = "Bench.Say"

var limits = yodel.Limits{Polling: -1}

func main() {
	peer.Main(peer.Peer{
		Name: "yodel-still", Module: "github.com/yodel-rpc/yodel", Setup: "as yodel, without polling on both sides",
		Works: []peer.Work{peer.Message},
		Serve: serve, Dial: dial,
	})
}

func serve(addr string) (string, func(), error) {
	l, err := yodel.TCP.Listen(addr)
	if err != nil {
		return "", nil, err
	}
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}, Limits: limits})
	say.Handle(s, func(_ context.Context, in *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
		message.Answer(in)
		return in, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	go s.Serve(ctx, l) //nolint:errcheck // it ends when it is stopped
	return l.Addr().String(), stop, nil
}

type client struct{ yodel *yodel.Client }

func dial(ctx context.Context, o peer.Options) (peer.Client, error) {
	c := yodel.NewClient(discovery.Static(o.Addrs...), &yodel.ClientOptions{Codec: protobuf.Codec, Limits: limits})
	if err := c.Ready(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return &client{c}, nil
}

func (c *client) Close() error {
	c.yodel.Close()
	return nil
}

func (c *client) Caller() (func() error, error) {
	ctx, request, reply := context.Background(), message.New(), new(message.BenchmarkMessage)
	return func() error {
		if err := c.yodel.Call(ctx, string(say), request, reply); err != nil {
			return err
		}
		return message.Check(reply)
	}, nil
}
