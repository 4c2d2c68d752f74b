// SPDX-License-Identifier: Apache-2.0

// Apache Thrift for Go, over a connection for each call that is under way.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"reflect"
	"strconv"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/thrift/gen/bench"
)

// Thrift's compiler is Debian's thrift-compiler, 0.17.0.
//
//go:generate thrift -out gen -gen go:skip_remote ../kitex/bench.thrift
//go:generate gofmt -w gen
//go:generate sed -i "s|^package|// Package bench is generated from bench.thrift.\\n&|" gen/bench/GoUnusedProtection__.go

func main() {
	peer.Main(peer.Peer{
		Name:   "thrift",
		Module: "github.com/apache/thrift",
		Setup:  "binary protocol, buffered transport, a connection for each caller or 100 that they share, no connectivity checks",
		Works:  []peer.Work{peer.Message, peer.Echo, peer.Kiss},
		Serve:  serve,
		Dial:   dial,
	})
}

type handler struct{}

func (handler) Say(_ context.Context, m *bench.BenchmarkMessage) (*bench.BenchmarkMessage, error) {
	m.Field1, m.Field2 = "OK", 100
	return m, nil
}

func (handler) Echo(_ context.Context, body []byte) ([]byte, error) { return body, nil }

func (handler) Kiss(_ context.Context, k *bench.Kiss) (*bench.Kiss, error) {
	return &bench.Kiss{S: k.S + ":server response" + strconv.FormatInt(k.I, 10), Num: k.Num, I: k.I + 1, D: k.D + 0.2}, nil
}

var (
	configuration = &thrift.TConfiguration{}
	protocols     = thrift.NewTBinaryProtocolFactoryConf(configuration)
	transports    = thrift.NewTBufferedTransportFactory(8 << 10)
)

func serve(addr string) (string, func(), error) {
	socket, err := thrift.NewTServerSocket(addr)
	if err != nil {
		return "", nil, err
	}
	if err := socket.Listen(); err != nil {
		return "", nil, err
	}
	thrift.ServerConnectivityCheckInterval = 0  // a goroutine and a ticker for every call
	thrift.ServerStopTimeout = time.Millisecond // it waits for the clients otherwise
	s := thrift.NewTSimpleServer4(bench.NewBenchProcessor(handler{}), socket, transports, protocols)
	go func() {
		if err := s.Serve(); err != nil {
			log.Fatal(err)
		}
	}()
	return socket.Addr().String(), func() {
		if err := s.Stop(); err != nil {
			log.Print(err)
		}
	}, nil
}

type connection struct {
	*bench.BenchClient
	transport thrift.TTransport
}

// A pool is connections of which each makes one call at a time.
type pool struct {
	options peer.Options
	all     []*connection
	idle    chan *connection
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	conns := o.Conns
	if conns == 0 {
		conns = max(1, min(o.Callers, 100))
	}
	p := &pool{options: o, idle: make(chan *connection, conns)}
	for n := range conns {
		transport, err := transports.GetTransport(thrift.NewTSocketConf(o.Addrs[n%len(o.Addrs)], configuration))
		if err == nil {
			err = transport.Open()
		}
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		c := &connection{bench.NewBenchClientFactory(transport, protocols), transport}
		p.all = append(p.all, c)
		p.idle <- c
	}
	return p, nil
}

func (p *pool) Close() error {
	var all error
	for _, c := range p.all {
		all = errors.Join(all, c.transport.Close())
	}
	return all
}

func (p *pool) Caller() (func() error, error) {
	call, err := p.call()
	if err != nil {
		return nil, err
	}
	if len(p.all) >= p.options.Callers { // there is one for each
		c := <-p.idle
		return func() error { return call(c) }, nil
	}
	return func() error {
		c := <-p.idle
		defer func() { p.idle <- c }()
		return call(c)
	}, nil
}

// call returns what makes one call.
func (p *pool) call() (func(*connection) error, error) {
	switch p.options.Work {
	case peer.Message:
		m := filled()
		return func(c *connection) error { return say(c, m) }, nil
	case peer.Echo:
		body := make([]byte, p.options.Size)
		_, err := rand.Read(body)
		return func(c *connection) error { return echo(c, body) }, err
	default:
		asked := peer.Asked()
		k := &bench.Kiss{S: asked.Text, Num: asked.Num, I: asked.I, D: asked.D}
		return func(c *connection) error { return kiss(c, k) }, nil
	}
}

func say(c *connection, m *bench.BenchmarkMessage) error {
	reply, err := c.Say(context.Background(), m)
	if err == nil && (reply.Field1 != "OK" || reply.Field2 != 100 || reply.Field102 != message.Text) {
		return fmt.Errorf("the reply has field1 %q, field2 %d and field102 %q", reply.Field1, reply.Field2, reply.Field102)
	}
	return err
}

func echo(c *connection, body []byte) error {
	reply, err := c.Echo(context.Background(), body)
	if err == nil && !bytes.Equal(reply, body) {
		return errors.New("another body has come back")
	}
	return err
}

func kiss(c *connection, k *bench.Kiss) error {
	reply, err := c.Kiss(context.Background(), k)
	if err != nil {
		return err
	}
	if want := (bench.Kiss{S: k.S + ":server response" + strconv.FormatInt(k.I, 10), Num: k.Num, I: k.I + 1, D: k.D + 0.2}); *reply != want {
		return fmt.Errorf("the reply is %v instead of %v", reply, want)
	}
	return nil
}

// filled returns the message with the values that it has in protobuf, where field5 is a list and
// empty.
func filled() *bench.BenchmarkMessage {
	m := new(bench.BenchmarkMessage)
	for name, field := range reflect.ValueOf(m).Elem().Fields() {
		switch {
		case name.Name == "Field5":
		case field.Kind() == reflect.String:
			field.SetString(message.Text)
		case field.Kind() == reflect.Bool:
			field.SetBool(true)
		default:
			field.SetInt(100_000)
		}
	}
	return m
}
