// SPDX-License-Identifier: Apache-2.0

// The peer net/rpc with protobuf: the standard library's package with a codec of our own, which is
// what those get who find gob too slow.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/rpc"
	"sync"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
)

func main() {
	peer.Main(peer.Peer{
		Name: "net/rpc protobuf", Module: "std", Setup: "vtprotobuf through a codec of 120 lines, one connection; a caller's replies decoded into the same variable",
		Works: []peer.Work{peer.Message, peer.Echo},
		Serve: serve, Dial: dial,
	})
}

// Bench is the service.
type Bench struct{}

// Say replies with the message that came. A pointer to the reply's pointer spares a copy of the
// struct, which has a lock.
func (Bench) Say(in *message.BenchmarkMessage, out **message.BenchmarkMessage) error {
	message.Answer(in)
	*out = in
	return nil
}

func (Bench) Echo(in, out *[]byte) error {
	*out = *in
	return nil
}

func serve(addr string) (string, func(), error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	s := rpc.NewServer()
	if err := s.Register(Bench{}); err != nil {
		return "", nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it was closed
			}
			go s.ServeCodec(newCodec(conn))
		}
	}()
	return l.Addr().String(), func() { l.Close() }, nil
}

// A client takes its connections in turn.
type client struct {
	peer.Options
	conns   []*rpc.Client
	turn    int
	data    []byte // of an echo
	message *message.BenchmarkMessage

	ended chan *rpc.Call // asynchronous calls
	mu    sync.Mutex
	open  map[any]func(error) // by the reply
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	c := &client{
		Options: o, data: make([]byte, o.Size), message: message.New(),
		ended: make(chan *rpc.Call, 1<<16), // net/rpc drops what does not fit
		open:  make(map[any]func(error)),
	}
	rand.Read(c.data)
	for i := range max(o.Conns, len(o.Addrs)) {
		conn, err := net.Dial("tcp", o.Addrs[i%len(o.Addrs)])
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.conns = append(c.conns, rpc.NewClientWithCodec(newCodec(conn)))
	}
	if o.Async {
		go c.collect()
	}
	return c, nil
}

func (c *client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

func (c *client) take() *rpc.Client {
	c.turn++
	return c.conns[c.turn%len(c.conns)]
}

func (c *client) Caller() (func() error, error) {
	conn := c.take()
	method, args, reply := c.call()
	return func() error {
		if err := conn.Call(method, args, reply); err != nil {
			return err
		}
		return c.check(reply)
	}, nil
}

// call returns a call's method and arguments, and a new reply.
func (c *client) call() (method string, args, reply any) {
	if c.Work == peer.Message {
		return "Bench.Say", c.message, new(message.BenchmarkMessage)
	}
	return "Bench.Echo", &c.data, new([]byte)
}

func (c *client) check(reply any) error {
	if reply, ok := reply.(*message.BenchmarkMessage); ok {
		return message.Check(reply)
	}
	if !bytes.Equal(*reply.(*[]byte), c.data) { //nolint:forcetypeassert // call made it
		return errors.New("other bytes came back")
	}
	return nil
}

func (c *client) Start(done func(error)) {
	method, args, reply := c.call()
	c.mu.Lock()
	c.open[reply] = done
	c.mu.Unlock()
	c.take().Go(method, args, reply, c.ended)
}

// collect ends asynchronous calls, until the program ends.
func (c *client) collect() {
	for call := range c.ended {
		c.mu.Lock()
		done := c.open[call.Reply]
		delete(c.open, call.Reply)
		c.mu.Unlock()
		err := call.Error
		if err == nil {
			err = c.check(call.Reply)
		}
		done(err)
	}
}
