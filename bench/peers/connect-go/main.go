// SPDX-License-Identifier: Apache-2.0

// connect-go, by its own protocol over HTTP/2 without TLS, with generated code.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"

	"connectrpc.com/connect"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/connect-go/suite"
)

const frame = 1 << 20 // the largest

func main() {
	peer.Main(peer.Peer{
		Name:   "connect-go",
		Module: "connectrpc.com/connect",
		Setup: "google.golang.org/protobuf; the Connect protocol over h2c of net/http, no compression, " +
			"largest windows, frames of up to 1 MiB; one connection; callers alternate where there are several servers",
		Works: []peer.Work{peer.Message, peer.Echo, peer.Kiss, peer.Stream, peer.Wait, peer.Duplex},
		Serve: serve, ServeTLS: serveTLS, Dial: dial,
		Deadlines: true,
	})
}

type server struct{}

func (server) Message(_ context.Context, m *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
	message.Answer(m)
	return m, nil
}

func (server) Echo(_ context.Context, b *suite.Body) (*suite.Body, error) { return b, nil }

func (server) Kiss(_ context.Context, v *suite.Values) (*suite.Values, error) {
	return encoded(decoded(v).Answer()), nil
}

func (server) Stream(_ context.Context, o *suite.Order, s *connect.ServerStream[suite.Body]) error {
	for range o.Messages {
		if err := s.Send(&suite.Body{Data: o.Data}); err != nil {
			return err
		}
	}
	return nil
}

func encoded(v peer.Values) *suite.Values {
	return &suite.Values{Text: v.Text, Num: v.Num, I: v.I, D: v.D}
}

func decoded(v *suite.Values) peer.Values {
	return peer.Values{Text: v.Text, Num: v.Num, I: v.I, D: v.D}
}

// onlyHTTP2 is HTTP/2, with TLS or without.
func onlyHTTP2(config *tls.Config) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP2(config != nil)
	p.SetUnencryptedHTTP2(config == nil)
	return p
}

func serve(addr string) (string, func(), error) { return serveTLS(addr, nil) }

// serveTLS serves without TLS if config is nil.
func serveTLS(addr string, config *tls.Config) (string, func(), error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(suite.NewSuiteHandler(server{}))
	mux.Handle(suite.NewWiresHandler(wires{}))
	s := &http.Server{Handler: mux, Protocols: onlyHTTP2(config), TLSConfig: config, HTTP2: &http.HTTP2Config{
		MaxConcurrentStreams:          1 << 20, // Else clients open a connection for every 250 calls.
		MaxReadFrameSize:              frame,
		MaxReceiveBufferPerConnection: 4<<20 - 1,
		MaxReceiveBufferPerStream:     4<<20 - 1,
	}}
	go func() { // Both end by Close.
		if config != nil {
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
	}()
	return l.Addr().String(), func() { _ = s.Close() }, nil
}

// A client has a transport for each connection, and a stub for each of them and each server.
type client struct {
	o          peer.Options
	transports []*http.Transport
	stubs      []stub
	next       atomic.Uint64
}

// A stub is a server over one connection.
type stub struct {
	suite.SuiteClient

	wires suite.WiresClient
}

// dial leaves it to the first calls to connect: net/http has no way to do it before.
func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	c, scheme := &client{o: o}, "http://"
	if o.TLS != nil {
		scheme = "https://"
	}
	for range max(o.Conns, 1) {
		t := &http.Transport{
			Protocols:          onlyHTTP2(o.TLS),
			TLSClientConfig:    o.TLS,
			HTTP2:              &http.HTTP2Config{StrictMaxConcurrentRequests: true, MaxReadFrameSize: frame},
			DisableCompression: true,
		}
		c.transports = append(c.transports, t)
		for _, addr := range o.Addrs {
			over, url, options := &http.Client{Transport: t}, scheme+addr, connect.WithAcceptCompression("gzip", nil, nil)
			c.stubs = append(c.stubs, stub{suite.NewSuiteClient(over, url, options), suite.NewWiresClient(over, url, options)})
		}
	}
	return c, nil
}

func (c *client) Caller() (func() error, error) {
	stub := c.stubs[int(c.next.Add(1))%len(c.stubs)]
	switch c.o.Work {
	case peer.Message:
		m := message.New()
		return func() error {
			ctx, cancel := c.o.Context()
			defer cancel()
			reply, err := stub.Message(ctx, m)
			if err != nil {
				return err
			}
			return message.Check(reply)
		}, nil
	case peer.Echo:
		body := &suite.Body{Data: peer.Body(c.o.Size)}
		return func() error {
			ctx, cancel := c.o.Context()
			defer cancel()
			reply, err := stub.Echo(ctx, body)
			if err != nil {
				return err
			}
			return peer.CheckBody(reply.Data, body.Data)
		}, nil
	case peer.Kiss:
		v := encoded(peer.Asked())
		return func() error {
			ctx, cancel := c.o.Context()
			defer cancel()
			reply, err := stub.Kiss(ctx, v)
			if err != nil {
				return err
			}
			return decoded(reply).CheckAnswer()
		}, nil
	case peer.Stream:
		o := &suite.Order{Data: peer.Body(c.o.Size), Messages: int64(c.o.Messages)}
		return func() error {
			ctx, cancel := c.o.Context()
			defer cancel()
			return stream(ctx, stub, o)
		}, nil
	case peer.Wait, peer.Duplex:
		return c.wires(stub.wires), nil
	default:
		return nil, fmt.Errorf("connect-go does not do %s here", c.o.Work)
	}
}

func stream(ctx context.Context, stub suite.SuiteClient, o *suite.Order) error {
	s, err := stub.Stream(ctx, o)
	if err != nil {
		return err
	}
	n := int64(0)
	for ; s.Receive(); n++ {
		if err := peer.CheckBody(s.Msg().Data, o.Data); err != nil {
			return err
		}
	}
	if n != o.Messages && s.Err() == nil {
		return fmt.Errorf("%d messages of %d have come", n, o.Messages)
	}
	return s.Err()
}

func (c *client) Close() error {
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
	return nil
}
