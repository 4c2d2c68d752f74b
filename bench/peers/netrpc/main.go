// SPDX-License-Identifier: Apache-2.0

// The peer net/rpc: the standard library's package with its own codec, gob.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"strconv"
	"sync"

	"github.com/yodel-rpc/yodel/bench/peer"
)

func main() {
	peer.Main(peer.Peer{
		Name: "net/rpc", Module: "std", Setup: "gob of a plain struct, or jsonrpc or msgpack where these are compared; one connection",
		Works: []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Plain},
		Serve: serve, Dial: dial,
	})
}

// Bench is the service.
type Bench struct{}

// KissArgs and KissReply are several values, for which net/rpc has structs.
type (
	KissArgs struct {
		S      string
		Num, I int64
		D      float64
	}
	KissReply KissArgs
)

func (Bench) Say(in, out *peer.PlainMessage) error {
	peer.AnswerPlain(in, out)
	return nil
}

func (Bench) Echo(in, out *[]byte) error {
	*out = *in
	return nil
}

func (Bench) Kiss(in *KissArgs, out *KissReply) error {
	*out = KissReply{in.S + ":server response" + strconv.FormatInt(in.I, 10), in.Num, in.I + 1, in.D + 0.2}
	return nil
}

// Elsewhere says where a server for another codec listens. It is asked in gob.
type Elsewhere map[string]string

// At takes the name of the codec.
func (e Elsewhere) At(codec string, addr *string) error {
	*addr = e[codec]
	return nil
}

// The codecs besides gob, of servers and of clients.
var (
	serveCodecs = map[string]func(io.ReadWriteCloser) rpc.ServerCodec{
		"json":    jsonrpc.NewServerCodec,
		"msgpack": func(conn io.ReadWriteCloser) rpc.ServerCodec { return newMsgpackCodec(conn) },
	}
	callCodecs = map[string]func(io.ReadWriteCloser) rpc.ClientCodec{
		"json":    jsonrpc.NewClientCodec,
		"msgpack": func(conn io.ReadWriteCloser) rpc.ClientCodec { return newMsgpackCodec(conn) },
	}
)

func serve(addr string) (string, func(), error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	s, elsewhere := rpc.NewServer(), make(Elsewhere)
	for name, codec := range serveCodecs {
		other, err := net.Listen("tcp", addr)
		if err != nil {
			return "", nil, err
		}
		elsewhere[name] = other.Addr().String()
		go accept(s, other, codec)
	}
	if err := errors.Join(s.Register(Bench{}), s.Register(elsewhere)); err != nil {
		return "", nil, err
	}
	go s.Accept(l)
	return l.Addr().String(), func() { l.Close() }, nil
}

// accept is Server.Accept with another codec. It ends with the program.
func accept(s *rpc.Server, l net.Listener, codec func(io.ReadWriteCloser) rpc.ServerCodec) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go s.ServeCodec(codec(conn))
	}
}

// connect connects with gob, or with another codec.
func connect(addr, codec string) (*rpc.Client, error) {
	client, err := rpc.Dial("tcp", addr)
	if callCodecs[codec] == nil || err != nil {
		return client, err
	}
	var at string
	if err := errors.Join(client.Call("Elsewhere.At", codec, &at), client.Close()); err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", at)
	if err != nil {
		return nil, err
	}
	return rpc.NewClientWithCodec(callCodecs[codec](conn)), nil
}

// A client takes its connections in turn.
type client struct {
	peer.Options
	conns   []*rpc.Client
	turn    int
	data    []byte // of an echo
	message *peer.PlainMessage
	kiss    KissArgs

	ended chan *rpc.Call // asynchronous calls
	mu    sync.Mutex
	open  map[any]func(error) // by the reply
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	c := &client{
		Options: o, data: make([]byte, o.Size), message: peer.NewPlain(), kiss: kissArgs(),
		ended: make(chan *rpc.Call, 1<<16), // net/rpc drops what does not fit
		open:  make(map[any]func(error)),
	}
	rand.Read(c.data)
	for i := range max(o.Conns, len(o.Addrs)) {
		conn, err := connect(o.Addrs[i%len(o.Addrs)], o.Codec)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.conns = append(c.conns, conn)
	}
	if o.Async {
		go c.collect()
	}
	return c, nil
}

func kissArgs() KissArgs {
	asked := peer.Asked()
	return KissArgs{asked.Text, asked.Num, asked.I, asked.D}
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
	return func() error {
		method, args, reply := c.call()
		if err := conn.Call(method, args, reply); err != nil {
			return err
		}
		return c.check(reply)
	}, nil
}

// call returns a call's method and arguments, and a new reply: gob leaves fields alone that did not
// come.
func (c *client) call() (method string, args, reply any) {
	switch c.Work {
	case peer.Message, peer.Plain:
		return "Bench.Say", c.message, new(peer.PlainMessage)
	case peer.Kiss:
		return "Bench.Kiss", &c.kiss, new(KissReply)
	default:
		return "Bench.Echo", &c.data, new([]byte)
	}
}

func (c *client) check(reply any) error {
	switch reply := reply.(type) {
	case *peer.PlainMessage:
		return peer.CheckPlain(reply)
	case *KissReply:
		var want KissReply
		if Bench.Kiss(Bench{}, &c.kiss, &want); *reply != want { //nolint:errcheck // it has none
			return fmt.Errorf("got %v, want %v", *reply, want)
		}
	case *[]byte:
		if !bytes.Equal(*reply, c.data) {
			return errors.New("other bytes came back")
		}
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
