// SPDX-License-Identifier: Apache-2.0

// The actors of yodel (package actor), in the process of the server or of the client.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	peer.Main(peer.Peer{
		Name: "yodel-actors", Module: "github.com/yodel-rpc/yodel", Actors: true,
		Setup: "package actor; google.golang.org/protobuf between processes; plain structs within one, which are copied; all options as they come",
		Works: []peer.Work{peer.Echo, peer.Send},
		Serve: serve, Dial: dial,
	})
}

// Between processes, messages without an answer are wrapperspb.StringValue, and questions are
// wrapperspb.BytesValue. These are the messages within one.
type (
	Note  struct{ Body []byte }
	Fact  struct{ Body []byte }
	Count struct{}
	Total struct{ Value uint64 }
)

// A sink counts messages, and answers those that are questions.
type sink struct{ n uint64 }

func (a *sink) text(context.Context, *wrapperspb.StringValue) error { a.n++; return nil }

func (a *sink) fact(context.Context, *Fact) error { a.n++; return nil }

func (a *sink) bytes(_ context.Context, m *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
	return m, nil
}

func (a *sink) note(_ context.Context, m *Note) (*Note, error) { return m, nil }

func (a *sink) empty(context.Context, *emptypb.Empty) (*wrapperspb.UInt64Value, error) {
	return wrapperspb.UInt64(a.reset()), nil
}

func (a *sink) count(context.Context, *Count) (*Total, error) { return &Total{a.reset()}, nil }

func (a *sink) reset() uint64 {
	n := a.n
	a.n = 0
	return n
}

// An idler does nothing.
type idler struct{}

var (
	kind   = actor.NewKind("Sink", actor.On((*sink).text), actor.On((*sink).fact), actor.Answer((*sink).bytes), actor.Answer((*sink).note), actor.Answer((*sink).empty), actor.Answer((*sink).count))
	idlers = actor.NewKind[idler]("Idler")
)

// sinks is how many callers may have an actor of their own.
const sinks = 100

func host(s *actor.System) error {
	for i := range sinks {
		if _, err := kind.Start(s, strconv.Itoa(i), new(sink), nil); err != nil {
			return err
		}
	}
	return nil
}

func newSystem() *actor.System {
	return actor.NewSystem(&actor.Options{Client: &yodel.ClientOptions{Codec: protobuf.Codec}})
}

func serve(addr string) (string, func(), error) {
	s := newSystem()
	if err := s.Listen(addr); err != nil {
		return "", nil, err
	}
	return s.Addr(), func() { s.Shutdown(context.Background()) }, host(s) //nolint:errcheck // it ends when it is stopped
}

// A client is a System that has the actors itself, or sends messages to those of the server.
type client struct {
	peer.Options

	system  *actor.System
	addr    string
	callers atomic.Int64
}

func dial(ctx context.Context, o peer.Options) (peer.Client, error) {
	c := &client{Options: o, system: newSystem(), addr: o.Addrs[0]}
	if o.Local {
		c.addr = c.system.Addr()
		if err := host(c.system); err != nil {
			return nil, err
		}
	}
	for i := range o.Idle {
		if _, err := idlers.Start(c.system, "idler-"+strconv.Itoa(i), new(idler), nil); err != nil {
			return nil, err
		}
	}
	_, err := c.system.Lookup(ctx, c.addr, "0")
	return c, err
}

func (c *client) Close() error {
	if c.Idle > 0 { // the process ends, and to stop a million actors takes a while
		return nil
	}
	return c.system.Shutdown(context.Background())
}

func (c *client) Caller() (func() error, error) {
	to := actor.Ref{Addr: c.addr, Kind: "Sink", Name: strconv.FormatInt((c.callers.Add(1)-1)%sinks, 10)}
	body, text := peer.Body(c.Size), strings.Repeat("x", c.Size)
	switch {
	case c.Work == peer.Send && c.Local:
		return func() error {
			return send[Total](c, to, &Fact{body}, &Count{}, func(t *Total) uint64 { return t.Value })
		}, nil
	case c.Work == peer.Send:
		return func() error {
			return send(c, to, wrapperspb.String(text), new(emptypb.Empty), (*wrapperspb.UInt64Value).GetValue)
		}, nil
	case c.Local:
		return func() error {
			return ask(c, to, &Note{body}, body, func(n *Note) []byte { return n.Body })
		}, nil
	default:
		return func() error { return ask(c, to, wrapperspb.Bytes(body), body, (*wrapperspb.BytesValue).GetValue) }, nil
	}
}

// send sends a message many times, and asks how many have arrived.
func send[R any](c *client, to actor.Ref, message, question any, count func(*R) uint64) error {
	ctx := context.Background()
	for range c.Messages {
		if err := c.system.Send(ctx, to, message); err != nil {
			return err
		}
	}
	got, err := actor.AskSync[R](ctx, c.system, to, question)
	if err == nil && count(got) != uint64(c.Messages) {
		err = fmt.Errorf("%d of %d messages have arrived", count(got), c.Messages)
	}
	return err
}

// ask asks for the body of a message.
func ask[M any](c *client, to actor.Ref, message *M, body []byte, bodyOf func(*M) []byte) error {
	got, err := actor.AskSync[M](context.Background(), c.system, to, message)
	if err == nil && !bytes.Equal(bodyOf(got), body) {
		err = errors.New("other bytes came back")
	}
	return err
}
