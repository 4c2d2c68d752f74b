// SPDX-License-Identifier: Apache-2.0

// The actors of protoactor-go, in the process of the server or of the client.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"github.com/yodel-rpc/yodel/bench/peer"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	peer.Main(peer.Peer{
		Name: "protoactor-go", Module: "github.com/asynkron/protoactor-go", Actors: true,
		Setup: "google.golang.org/protobuf between processes; structs within one, which are shared; mailboxes without a bound; all options as they come",
		Works: []peer.Work{peer.Echo, peer.Send},
		Serve: serve, Dial: dial,
	})
}

// Between processes, messages without an answer are wrapperspb.StringValue, and questions are
// wrapperspb.BytesValue. These are the messages within one.
type (
	note  struct{ Body []byte }
	count struct{}
	total struct{ Value uint64 }
)

// A sink counts messages, and answers those that are questions.
type sink struct{ n uint64 }

func (a *sink) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *wrapperspb.BytesValue, *wrapperspb.StringValue, *note:
		a.n++
		if ctx.Sender() != nil {
			ctx.Respond(m)
		}
	case *emptypb.Empty:
		ctx.Respond(wrapperspb.UInt64(a.n))
		a.n = 0
	case *count:
		ctx.Respond(&total{a.n})
		a.n = 0
	}
}

// An idler does nothing.
type idler struct{}

func (idler) Receive(actor.Context) {}

// sinks is how many callers may have an actor of their own.
const sinks = 100

func host(s *actor.ActorSystem) error {
	props := actor.PropsFromProducer(func() actor.Actor { return new(sink) })
	for i := range sinks {
		if _, err := s.Root.SpawnNamed(props, strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func newSystem() *actor.ActorSystem {
	return actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
}

// start lets a system take messages of other processes.
func start(s *actor.ActorSystem) *remote.Remote {
	r := remote.NewRemote(s, remote.Configure("127.0.0.1", 0))
	r.Start()
	return r
}

func serve(string) (string, func(), error) {
	s := newSystem()
	r := start(s)
	return s.Address(), func() { r.Shutdown(false) }, host(s)
}

// A client is a system that has the actors itself, or sends messages to those of the server.
type client struct {
	peer.Options

	system  *actor.ActorSystem
	remote  *remote.Remote // nil without one
	addr    string
	callers atomic.Int64
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	c := &client{Options: o, system: newSystem(), addr: o.Addrs[0]}
	if o.Local {
		c.addr = c.system.Address()
		if err := host(c.system); err != nil {
			return nil, err
		}
	} else {
		c.remote = start(c.system)
	}
	props := actor.PropsFromProducer(func() actor.Actor { return idler{} })
	for range o.Idle {
		c.system.Root.Spawn(props)
	}
	return c, nil
}

func (c *client) Close() error {
	if c.remote != nil {
		c.remote.Shutdown(false)
	}
	return nil
}

func (c *client) Caller() (func() error, error) {
	to := actor.NewPID(c.addr, strconv.FormatInt((c.callers.Add(1)-1)%sinks, 10))
	body, text := peer.Body(c.Size), strings.Repeat("x", c.Size)
	switch {
	case c.Work == peer.Send && c.Local:
		return func() error { return c.send(to, &note{body}, &count{}) }, nil
	case c.Work == peer.Send:
		return func() error { return c.send(to, wrapperspb.String(text), new(emptypb.Empty)) }, nil
	case c.Local:
		return func() error { return c.ask(to, &note{body}, body) }, nil
	default:
		return func() error { return c.ask(to, wrapperspb.Bytes(body), body) }, nil
	}
}

// timeout limits a question.
const timeout = 20 * time.Second

// send sends a message many times, and asks how many have arrived.
func (c *client) send(to *actor.PID, message, question any) error {
	for range c.Messages {
		c.system.Root.Send(to, message)
	}
	got, err := c.system.Root.RequestFuture(to, question, timeout).Result()
	if err != nil {
		return err
	}
	n := uint64(0)
	switch got := got.(type) {
	case *wrapperspb.UInt64Value:
		n = got.Value
	case *total:
		n = got.Value
	}
	if n != uint64(c.Messages) {
		return fmt.Errorf("%d of %d messages have arrived", n, c.Messages)
	}
	return nil
}

// ask asks for the body of a message.
func (c *client) ask(to *actor.PID, message any, body []byte) error {
	got, err := c.system.Root.RequestFuture(to, message, timeout).Result()
	if err != nil {
		return err
	}
	var back []byte
	switch got := got.(type) {
	case *wrapperspb.BytesValue:
		back = got.Value
	case *note:
		back = got.Body
	}
	if !bytes.Equal(back, body) {
		return errors.New("other bytes came back")
	}
	return nil
}
