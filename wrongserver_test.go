// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	stdtls "crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/codec/thrift"
	connectrpc "github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	thriftrpc "github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// If the server speaks another protocol than the Wire, the error says so, and says that the call
// was not executed.
func TestWiresRecognizeServersOfOtherProtocols(t *testing.T) {
	wires := []struct {
		wire  yodel.Wire
		codec yodel.Codec
	}{
		{grpc.Wire, yodel.JSON}, {grpc.Web1, yodel.JSON}, {connectrpc.Wire(nil), yodel.JSON},
		{connectrpc.Wire(&connectrpc.Options{HTTP1: true}), yodel.JSON},
		{netrpc.Wire(gob.Codec), gob.Codec}, {netrpc.WireHTTP(gob.Codec, "/rpc"), gob.Codec},
		{jsonrpc.Wire(yodel.JSON), yodel.JSON}, {rpcx.Wire(nil), yodel.JSON},
		{thriftrpc.Wire(thrift.Codec, &thriftrpc.WireOptions{Service: "Arith"}), thrift.Codec}, {dubbo.Wire(hessian2.Codec, nil), hessian2.Codec},
	}
	ca := newAuthority(t, "authority")
	secure, err := (&tls.Transport{Server: &stdtls.Config{
		Certificates: []stdtls.Certificate{ca.certify(t, "localhost", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))},
	}}).Listen("127.0.0.1:0")
	must(t, err)
	serveOn(t, newServer(t, nil), secure)
	for server, test := range map[string]struct{ addr, want string }{
		"yodel": {serve(t, newServer(t, nil)), "yodel's own protocol alone; does ServerOptions.Protocols lack this one?"},
		"TLS":   {secure.Addr().String(), "a TLS alert; is TLS set up on one side only?"},
		"web":   {speak(t, false, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), `it answered "HTTP/1.1 400 Bad Request"`},
	} {
		for _, w := range wires {
			name := w.wire.Name()
			t.Run(name+" to "+server, func(t *testing.T) {
				if server == "web" && strings.Contains(name, "+http") {
					t.Skip("it speaks HTTP/1")
				}
				c := newClient(t, &yodel.ClientOptions{Codec: w.codec, Wires: []yodel.Wire{w.wire}}, name+"://"+test.addr)
				err := c.Call(t.Context(), "Arith.Mul", &[]string{"a"}, new(string))
				e := wantError(t, err, yodel.Unavailable, "YDL1101")
				if !e.NotProcessed || !strings.Contains(e.Message, "the server does not speak "+name+": ") || !strings.Contains(e.Message, test.want) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// If a server of HTTP breaks its answer off, the call may have been executed.
func TestABrokenAnswerOfHTTPMayHaveBeenExecuted(t *testing.T) {
	w, l := connectrpc.Wire(&connectrpc.Options{HTTP1: true}), listen(t)
	defer l.Close()
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = nc.Read(make([]byte, 4096))
			_, _ = nc.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Le"))
			_ = nc.Close()
		}
	}()
	c := newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{w}}, w.Name()+"://"+l.Addr().String())
	if _, err := Mul.Call(t.Context(), c, &Args{1, 2}); err == nil || yodel.NotProcessed(err) {
		t.Errorf("got %v", err)
	}
}

// HTTP/2 over TLS needs a protocol that TLS negotiates. The error says so.
func TestHTTP2WithoutNextProtosIsNamed(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	for _, protocols := range [][]string{nil, {"h2"}} {
		config := &stdtls.Config{RootCAs: pool, NextProtos: protocols}
		c := newClient(t, &yodel.ClientOptions{Transport: &tls.Transport{Client: config}, Wires: []yodel.Wire{grpc.Wire}}, "grpc://"+server.Listener.Addr().String())
		_, err := Mul.Call(t.Context(), c, &Args{1, 2})
		if protocols != nil {
			if yodel.CodeOf(err) != yodel.Unimplemented { // as the server says
				t.Errorf("with NextProtos: got %v", err)
			}
			continue
		}
		if e := wantError(t, err, yodel.Unavailable, "YDL1101"); !e.NotProcessed || !strings.Contains(e.Message, `put "h2" into NextProtos`) {
			t.Errorf("got %v", err)
		}
	}
}
