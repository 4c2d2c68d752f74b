// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	apache "github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	protocol "github.com/yodel-rpc/yodel/protocol/thrift"
	tlstransport "github.com/yodel-rpc/yodel/transport/tls"

	"github.com/yodel-rpc/yodel/conformance/thrift/gen/thrifttest"
	"github.com/yodel-rpc/yodel/conformance/thrift/service"
)

// A variant is a way in which a client and a server of Thrift can be connected.
type variant struct{ compact, old, framed, tls, multiplexed bool }

func (v variant) String() string {
	return fmt.Sprintf("compact %t, old %t, framed %t, TLS %t, multiplexed %t", v.compact, v.old, v.framed, v.tls, v.multiplexed)
}

// variants calls f for all of them.
func variants(t *testing.T, f func(t *testing.T, v variant, c *certificates)) {
	c := newCertificates(t)
	for i := range 32 {
		v := variant{i&1 != 0, i&2 != 0, i&4 != 0, i&8 != 0, i&16 != 0}
		if !v.compact || !v.old {
			t.Run(v.String(), func(t *testing.T) { f(t, v, c) })
		}
	}
}

// A certificates has the TLS configurations of both sides.
type certificates struct{ server, client *tls.Config }

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return &certificates{&tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: roots}}
}

// config returns the configuration of an Apache client or server.
func (v variant) config(c *certificates) *apache.TConfiguration {
	return &apache.TConfiguration{
		ConnectTimeout: 10 * time.Second, SocketTimeout: 20 * time.Second, TLSConfig: c.client,
		TBinaryStrictWrite: new(!v.old), TBinaryStrictRead: new(!v.old),
	}
}

func (v variant) protocols(c *apache.TConfiguration) apache.TProtocolFactory {
	if v.compact {
		return apache.NewTCompactProtocolFactoryConf(c)
	}
	return apache.NewTBinaryProtocolFactoryConf(c)
}

func (v variant) transports(c *apache.TConfiguration) apache.TTransportFactory {
	if v.framed {
		return apache.NewTFramedTransportFactoryConf(apache.NewTTransportFactory(), c)
	}
	return apache.NewTBufferedTransportFactory(8 << 10)
}

// An apacheClients has clients of both services over one connection. The second one is nil without
// multiplexing.
type apacheClients struct {
	first  *thrifttest.ThriftTestClient
	second *thrifttest.SecondServiceClient
}

// dial returns Apache clients of a server.
func (v variant) dial(t *testing.T, addr string, c *certificates) apacheClients {
	t.Helper()
	config := v.config(c)
	var socket apache.TTransport = apache.NewTSocketConf(addr, config)
	if v.tls {
		socket = apache.NewTSSLSocketConf(addr, config)
	}
	transport, err := v.transports(config).GetTransport(socket)
	if err != nil {
		t.Fatal(err)
	}
	if err = transport.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = transport.Close() }) // it may be closed
	p := v.protocols(config).GetProtocol(transport)
	if !v.multiplexed {
		return apacheClients{first: thrifttest.NewThriftTestClient(apache.NewTStandardClient(p, p))}
	}
	client := func(name string) apache.TClient {
		p := apache.NewTMultiplexedProtocol(p, name)
		return apache.NewTStandardClient(p, p)
	}
	return apacheClients{thrifttest.NewThriftTestClient(client("ThriftTest")), thrifttest.NewSecondServiceClient(client("SecondService"))}
}

// serve starts a yodel server.
func (v variant) serve(t *testing.T, c *certificates) (addr string, s *service.ThriftTest) {
	t.Helper()
	server, s, err := service.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)}, &protocol.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return v.listen(t, c, server), s
}

// serveApache starts an Apache server.
func (v variant) serveApache(t *testing.T, c *certificates, h *handler) (addr string) {
	t.Helper()
	config := v.config(c)
	var socket apache.TServerTransport
	var err error
	if v.tls {
		socket, err = apache.NewTSSLServerSocket("127.0.0.1:0", c.server)
	} else {
		socket, err = apache.NewTServerSocket("127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err = socket.Listen(); err != nil {
		t.Fatal(err)
	}
	var processor apache.TProcessor = thrifttest.NewThriftTestProcessor(h)
	if v.multiplexed {
		both := apache.NewTMultiplexedProcessor()
		both.RegisterProcessor("ThriftTest", processor)
		both.RegisterProcessor("SecondService", thrifttest.NewSecondServiceProcessor(h))
		processor = both
	}
	server := apache.NewTSimpleServer4(processor, socket, v.transports(config), v.protocols(config))
	ended := make(chan error, 1)
	go func() { ended <- server.AcceptLoop() }()
	t.Cleanup(func() {
		_ = socket.Close() // Stop alone does not end the AcceptLoop of a server with TLS
		_ = server.Stop()
		<-ended
	})
	return socket.(interface{ Addr() net.Addr }).Addr().String()
}

// only returns the service whose methods the server has, or "" if it has several.
func (v variant) only() string {
	if v.multiplexed {
		return ""
	}
	return "ThriftTest"
}

// calling returns a yodel client of an Apache server.
func (v variant) calling(t *testing.T, c *certificates, addr string) *yodel.Client {
	t.Helper()
	o := yodel.ClientOptions{Codec: codec.Codec}
	if v.compact {
		o.Codec = codec.Compact
	}
	if v.tls {
		o.Transport = &tlstransport.Transport{Client: c.client}
	}
	throws := service.Throws(func(method string) string { return "ThriftTest." + method })
	o.Wires = []yodel.Wire{protocol.Wire(o.Codec, &protocol.WireOptions{Service: v.only(), Unframed: !v.framed, Multiplexed: v.multiplexed, Throws: throws})}
	client := yodel.NewClient(discovery.Static("thrift://"+addr), &o)
	t.Cleanup(client.Close)
	return client
}
