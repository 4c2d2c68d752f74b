// SPDX-License-Identifier: Apache-2.0

// The peer yodel with a full chain around each call: what a service in production would have, on
// the client and on the server. What it costs is the difference to the peer yodel over as many
// servers.
package main

import (
	"context"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/accesslog"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/recovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
)

const (
	say yodel.Method[message.BenchmarkMessage, message.BenchmarkMessage] = "Bench.Say"
	// As long as what an identity provider issues would be, if it were not signed.
	token = "Bearer 5f0a2d4e8c1b47f69a3e7d2c6b8f1e04"
)

func main() {
	peer.Main(peer.Peer{
		Name: "yodel-chain", Module: "github.com/yodel-rpc/yodel",
		Setup: "as yodel, and on the client timeout, retry, recovery, a token for each call, accesslog that is off, metrics, round robin; " +
			"on the server recovery, a check of each token, accesslog that is off, metrics, limits as they are by default",
		Works: []peer.Work{peer.Message},
		Serve: serve, Dial: dial,
	})
}

func serve(addr string) (string, func(), error) {
	l, err := yodel.TCP.Listen(addr)
	if err != nil {
		return "", nil, err
	}
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:     []yodel.Codec{protobuf.Codec},
		Middleware: []yodel.Middleware{recovery.With(report), auth.Check(known)},
		Observers:  []yodel.Observer{silent(), new(metrics).observer()},
	})
	say.Handle(s, func(_ context.Context, in *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
		message.Answer(in)
		return in, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	go s.Serve(ctx, l) //nolint:errcheck // it ends when it is stopped
	return l.Addr().String(), stop, nil
}

func known(_ context.Context, _, got string) (context.Context, error) {
	if subtle.ConstantTimeCompare([]byte(got), []byte(token[len("Bearer "):])) == 0 {
		return nil, yodel.PermissionDenied
	}
	return nil, nil
}

func report(_ context.Context, call *yodel.Call, value any, stack []byte) error {
	return fmt.Errorf("%s panicked: %v\n%s", call.Method, value, stack)
}

// silent is an access log whose level lets nothing through.
func silent() yodel.Observer {
	return accesslog.To(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1})), nil)
}

// Metrics are what a dashboard would show: how many calls are open, how many failed, how long they
// took.
type metrics struct {
	open, failed atomic.Int64
	took         [64]atomic.Int64 // by the number of bits of the nanoseconds
}

func (m *metrics) observer() yodel.Observer {
	return yodel.Observer{
		Start: func(ctx context.Context, _ *yodel.Call) context.Context {
			m.open.Add(1)
			return ctx
		},
		End: func(_ context.Context, call *yodel.Call, err error) {
			m.open.Add(-1)
			if err != nil {
				m.failed.Add(1)
			}
			m.took[bits.Len64(uint64(call.Took()))].Add(1)
		},
	}
}

type client struct{ yodel *yodel.Client }

func dial(ctx context.Context, o peer.Options) (peer.Client, error) {
	c := yodel.NewClient(discovery.Static(o.Addrs...), &yodel.ClientOptions{
		Codec: protobuf.Codec,
		Middleware: []yodel.Middleware{
			recovery.With(report), timeout.After(10 * time.Second), retry.Times(3), auth.Token(token),
		},
		Observers: []yodel.Observer{silent(), new(metrics).observer()},
	})
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
	ctx, reply := context.Background(), new(message.BenchmarkMessage)
	request := message.New()
	return func() error {
		if err := c.yodel.Call(ctx, string(say), request, reply); err != nil {
			return err
		}
		return message.Check(reply)
	}, nil
}
