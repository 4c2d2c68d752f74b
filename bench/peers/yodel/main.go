// SPDX-License-Identifier: Apache-2.0

// The peer yodel: one connection to each endpoint, no option set but the codec.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/discovery"
)

const (
	say  yodel.Method[message.BenchmarkMessage, message.BenchmarkMessage] = "Bench.Say"
	echo yodel.Method[[]byte, []byte]                                     = "Bench.Echo"
	// as the server has it: it keeps no bytes
	look yodel.Method[raw.View, raw.View] = "Bench.Echo"
	// takes and returns several values
	kiss                                                     = "Bench.Kiss"
	plain yodel.Method[peer.PlainMessage, peer.PlainMessage] = "Plain.Say"
	// a count of 8 bytes, and the message to send
	feed yodel.Feed[[]byte, []byte] = "Bench.Feed"
)

func main() {
	peer.Main(peer.Peer{
		Name: "yodel", Module: "github.com/yodel-rpc/yodel",
		Setup: "vtprotobuf, one connection; replies and messages of a stream (Reuse) decoded into the same variable, " +
			"raw bytes looked at where they are (View)",
		Works: []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream, peer.Plain},
		Serve: serve, Dial: dial,
	})
}

func serve(addr string) (string, func(), error) {
	l, err := yodel.TCP.Listen(addr)
	if err != nil {
		return "", nil, err
	}
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec, msgpack.Codec, gob.Codec}})
	say.Handle(s, func(_ context.Context, in *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
		message.Answer(in)
		return in, nil
	})
	look.Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) { return in, nil })
	err = s.Handle(kiss, func(s string, num, i int64, d float64) (string, int64, int64, float64) {
		return s + ":server response" + strconv.FormatInt(i, 10), num, i + 1, d + 0.2
	})
	if err != nil {
		return "", nil, err
	}
	feed.Handle(s, func(_ context.Context, in *[]byte, send yodel.Send[[]byte]) error {
		msg := (*in)[8:]
		for range binary.LittleEndian.Uint64(*in) {
			if err := send(&msg); err != nil {
				return err
			}
		}
		return nil
	})
	if err := s.RegisterName("Plain", plainService{}); err != nil {
		return "", nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	go s.Serve(ctx, l) //nolint:errcheck // it ends when it is stopped
	return l.Addr().String(), stop, nil
}

// plainService is registered by reflection.
type plainService struct{}

func (plainService) Say(_ context.Context, in, out *peer.PlainMessage) error {
	peer.AnswerPlain(in, out)
	return nil
}

// A client has one yodel.Client, or as many as there are to be connections.
type client struct {
	peer.Options
	clients []*yodel.Client
	turn    int    // of the clients
	data    []byte // of an echo, or of each message of a stream
	slots   []*slot
	next    int // of the slots
}

func dial(ctx context.Context, o peer.Options) (peer.Client, error) {
	c := &client{Options: o, data: make([]byte, o.Size)}
	rand.Read(c.data)
	codec := map[peer.Work]yodel.Codec{
		peer.Message: protobuf.Codec, peer.Echo: raw.Codec, peer.Kiss: msgpack.Codec, peer.Stream: raw.Codec,
		peer.Plain: map[string]yodel.Codec{"gob": gob.Codec, "json": yodel.JSON, "msgpack": msgpack.Codec}[o.Codec],
	}[o.Work]
	for range max(o.Conns, 1) {
		one := yodel.NewClient(discovery.Static(o.Addrs...), &yodel.ClientOptions{Codec: codec})
		c.clients = append(c.clients, one)
		if err := one.Ready(ctx); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

func (c *client) Close() error {
	for _, one := range c.clients {
		one.Close()
	}
	return nil
}

// take takes the clients in turn.
func (c *client) take() *yodel.Client {
	c.turn++
	return c.clients[c.turn%len(c.clients)]
}

func (c *client) Caller() (func() error, error) {
	ctx, client := context.Background(), c.take()
	switch c.Work {
	case peer.Stream:
		return func() error { return c.stream(ctx, client) }, nil
	case peer.Plain:
		in := peer.NewPlain()
		return func() error {
			out, err := plain.Call(ctx, client, in)
			if err != nil {
				return err
			}
			return peer.CheckPlain(out)
		}, nil
	default:
	}
	method, args, reply, check := c.work()
	return func() error {
		if err := client.Call(ctx, method, args, reply); err != nil {
			return err
		}
		return check()
	}, nil
}

// CallerOf is Caller for an echo of another size.
func (c *client) CallerOf(size int) (func() error, error) {
	client, data, reply := c.take(), peer.Body(size), new([]byte)
	return func() error {
		if err := client.Call(context.Background(), string(echo), &data, reply); err != nil {
			return err
		}
		return peer.CheckBody(*reply, data)
	}, nil
}

// work returns a call's method, its request, a place for the reply, and what checks it.
func (c *client) work() (method string, args, reply any, check func() error) {
	switch c.Work {
	case peer.Message:
		reply := new(message.BenchmarkMessage)
		return string(say), message.New(), reply, func() error { return message.Check(reply) }
	case peer.Kiss:
		return c.kiss()
	default:
		reply := new([]byte)
		return string(echo), &c.data, reply, func() error { return c.same(*reply) }
	}
}

func (c *client) same(got []byte) error {
	if !bytes.Equal(got, c.data) {
		return errors.New("other bytes came back")
	}
	return nil
}

func (c *client) kiss() (method string, args, reply any, check func() error) {
	asked, got := peer.Asked(), new(peer.Values)
	reply = yodel.Values{&got.Text, &got.Num, &got.I, &got.D}
	return kiss, yodel.Values{asked.Text, asked.Num, asked.I, asked.D}, reply, func() error { return got.CheckAnswer() }
}

func (c *client) stream(ctx context.Context, client *yodel.Client) error {
	request := append(binary.LittleEndian.AppendUint64(nil, uint64(c.Messages)), c.data...)
	n := 0
	for msg, err := range feed.Call(ctx, client, &request).Reuse() {
		if err != nil {
			return err
		}
		if err := c.same(*msg); err != nil {
			return err
		}
		n++
	}
	if n != c.Messages {
		return fmt.Errorf("got %d messages, want %d", n, c.Messages)
	}
	return nil
}

// A slot is what an asynchronous call needs. It is used again.
type slot struct {
	call  yodel.Call
	ended func(error)
	done  func(error)
	open  atomic.Bool
}

// Start takes the slots in turn, since calls end about in the order in which they began.
func (c *client) Start(done func(error)) {
	if c.next++; c.next >= len(c.slots) {
		c.next = 0
	}
	if c.next == len(c.slots) || c.slots[c.next].open.Load() { // there are too few
		more := make([]*slot, max(len(c.slots), 16))
		for i := range more {
			more[i] = c.newSlot()
		}
		c.slots = slices.Insert(c.slots, c.next, more...)
	}
	s := c.slots[c.next]
	s.done = done
	s.open.Store(true)
	c.take().Go(context.Background(), &s.call, s.ended)
}

func (c *client) newSlot() *slot {
	s := new(slot)
	var check func() error
	s.call.Method, s.call.Args, s.call.Reply, check = c.work()
	s.ended = func(err error) {
		if err == nil {
			err = check()
		}
		done := s.done
		s.open.Store(false)
		done(err)
	}
	return s
}
