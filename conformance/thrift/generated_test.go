// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/apachethrift"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	protocol "github.com/yodel-rpc/yodel/protocol/thrift"
	tlstransport "github.com/yodel-rpc/yodel/transport/tls"

	"github.com/yodel-rpc/yodel/conformance/thrift/gen/thrifttest"
)

// These tests use the generated types with yodel: see package codec/apachethrift.

// A ThriftTest is a handler for Apache's generated code that a yodel server serves. One method
// changes: its result is a set, for which the generated code has a slice.
type ThriftTest struct{ *handler }

func (ThriftTest) TestSet(_ context.Context, v map[int32]struct{}) (map[int32]struct{}, error) {
	return v, nil
}

// A SecondService is one more service of the handler.
type SecondService struct{ h *handler }

func (s SecondService) SecondtestString(ctx context.Context, v string) (string, error) {
	return s.h.SecondtestString(ctx, v)
}

// generatedThrows has the declared exceptions as generated types.
func generatedThrows(exception, multi string) protocol.Throws {
	return protocol.Throws{
		"ThriftTest." + exception: {1: (*thrifttest.Xception)(nil)},
		"ThriftTest." + multi:     {1: (*thrifttest.Xception)(nil), 2: (*thrifttest.Xception2)(nil)},
	}
}

// serveGenerated starts a yodel server with the processors of an Apache handler, which say all that
// the server has to know.
func (v variant) serveGenerated(t *testing.T, c *certificates, h *handler) (addr string) {
	t.Helper()
	server := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{codec.Codec, codec.Compact},
		Protocols: []yodel.Protocol{protocol.New(&protocol.Options{Service: "ThriftTest"})},
		Logger:    slog.New(slog.DiscardHandler),
	})
	err := errors.Join(
		apachethrift.Register(server, "ThriftTest", thrifttest.NewThriftTestProcessor(h)),
		apachethrift.Register(server, "SecondService", thrifttest.NewSecondServiceProcessor(h)),
	)
	if err != nil {
		t.Fatal(err)
	}
	return v.listen(t, c, server)
}

// serveTypes starts a yodel server with an Apache handler, whose methods are registered as those of
// any other type.
func (v variant) serveTypes(t *testing.T, c *certificates, h *handler) (addr string) {
	t.Helper()
	server := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{apachethrift.New(codec.Codec), apachethrift.New(codec.Compact)},
		Protocols: []yodel.Protocol{protocol.New(&protocol.Options{
			Service: "ThriftTest", OneWay: []string{"ThriftTest.TestOneway"}, Throws: generatedThrows("TestException", "TestMultiException"),
		})},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err := errors.Join(server.Register(ThriftTest{h}), server.Register(SecondService{h})); err != nil {
		t.Fatal(err)
	}
	return v.listen(t, c, server)
}

// listen serves a yodel server on loopback.
func (v variant) listen(t *testing.T, c *certificates, server *yodel.Server) (addr string) {
	t.Helper()
	transport := yodel.TCP
	if v.tls {
		transport = &tlstransport.Transport{Server: c.server}
	}
	l, err := transport.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l.Addr().String()
}

// callingGenerated returns a yodel client for generated types.
func (v variant) callingGenerated(t *testing.T, c *certificates, addr string, throws protocol.Throws) (*yodel.Client, yodel.Codec) {
	t.Helper()
	own := apachethrift.New(codec.Codec)
	if v.compact {
		own = apachethrift.New(codec.Compact)
	}
	o := yodel.ClientOptions{Codec: own}
	if v.tls {
		o.Transport = &tlstransport.Transport{Client: c.client}
	}
	o.Wires = []yodel.Wire{protocol.Wire(own, &protocol.WireOptions{Service: v.only(), Unframed: !v.framed, Multiplexed: v.multiplexed, Throws: throws})}
	client := yodel.NewClient(discovery.Static("thrift://"+addr), &o)
	t.Cleanup(client.Close)
	return client, own
}

// Apache's clients call an Apache handler that a yodel server serves.
func TestApacheClientsOfAGeneratedHandler(t *testing.T) {
	variants(t, func(t *testing.T, v variant, c *certificates) {
		for name, serve := range map[string]func(*testing.T, *certificates, *handler) string{"processors": v.serveGenerated, "types": v.serveTypes} {
			t.Run(name, func(t *testing.T) {
				h := &handler{make(chan int32, 10)}
				clients := v.dial(t, serve(t, c, h), c)
				checkApache(t, clients)
				checkUndeclared(t, clients.first)
				executed(t, h.oneWay, 42)
			})
		}
	})
}

// Generated clients call Apache's server, and a yodel server, through a yodel client.
func TestGeneratedClientsOverYodel(t *testing.T) {
	variants(t, func(t *testing.T, v variant, c *certificates) {
		if v.old {
			t.Skip("a Wire sends only the strict form")
		}
		for name, serve := range map[string]func(*testing.T, *certificates, *handler) string{"Apache": v.serveApache, "yodel": v.serveGenerated, "yodel, types": v.serveTypes} {
			t.Run(name, func(t *testing.T) {
				h := &handler{make(chan int32, 10)}
				client, own := v.callingGenerated(t, c, serve(t, c, h), nil)
				clients := apacheClients{first: thrifttest.NewThriftTestClient(apachethrift.Client(client, own, "ThriftTest"))}
				if v.multiplexed {
					clients.second = thrifttest.NewSecondServiceClient(apachethrift.Client(client, own, "SecondService"))
				}
				checkApache(t, clients)
				if err := clients.first.TestException(t.Context(), "TException"); yodel.CodeOf(err) != yodel.Unknown {
					t.Errorf("testException: got %v", err)
				}
				executed(t, h.oneWay, 42)
			})
		}
	})
}

// A yodel client calls Apache's server, with generated types as arguments and replies.
func TestGeneratedTypesInCalls(t *testing.T) {
	variants(t, func(t *testing.T, v variant, c *certificates) {
		if v.old {
			t.Skip("a Wire sends only the strict form")
		}
		client, _ := v.callingGenerated(t, c, v.serveApache(t, c, &handler{make(chan int32, 10)}), generatedThrows("testException", "testMultiException"))
		all, got := everything(), new(thrifttest.Everything)
		err := client.Call(t.Context(), "ThriftTest.testEverything", all, got)
		same(t, "testEverything", got, err, all)
		returns(t, client, "testEnum", thrifttest.Numberz_EIGHT, thrifttest.Numberz_EIGHT)
		returns(t, client, "testTypedef", thrifttest.UserId(1<<40), thrifttest.UserId(1<<40))
		five := &thrifttest.Xtruct{StringThing: "Zero", ByteThing: 1, I32Thing: -3, I64Thing: -5}
		insanity := &thrifttest.Insanity{UserMap: map[thrifttest.Numberz]thrifttest.UserId{5: 5}, Xtructs: []*thrifttest.Xtruct{five}}
		var crazy map[thrifttest.UserId]map[thrifttest.Numberz]*thrifttest.Insanity
		if err := client.Call(t.Context(), "ThriftTest.testInsanity", insanity, &crazy); err != nil || !crazy[1][3].Equals(insanity) {
			t.Errorf("testInsanity: got %v, %v", crazy, err)
		}
		args, multi := &thrifttest.ThriftTestTestMultiArgs{Arg0: 1, Arg1: 2, Arg2: 3, Arg4: thrifttest.Numberz_ONE}, new(thrifttest.Xtruct)
		err = client.Call(t.Context(), "ThriftTest.testMulti", args, multi)
		same(t, "testMulti", multi, err, &thrifttest.Xtruct{StringThing: "Hello2", ByteThing: 1, I32Thing: 2, I64Thing: 3})
		var first *thrifttest.Xception
		err = client.Call(t.Context(), "ThriftTest.testException", yodel.Values{"Xception"}, yodel.Values{})
		if !errors.As(err, &first) || first.ErrorCode != 1001 {
			t.Errorf("testException: got %v", err)
		}
		var second *thrifttest.Xception2
		err = client.Call(t.Context(), "ThriftTest.testMultiException", yodel.Values{"Xception2", "x"}, multi)
		if !errors.As(err, &second) || second.StructThing.StringThing != "This is an Xception2" {
			t.Errorf("testMultiException: got %v", err)
		}
	})
}
