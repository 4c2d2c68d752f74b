// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc/testdata"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// javaCases are the test cases of grpc-java's client that need neither Google's cloud nor ORCA.
var javaCases = []string{
	"empty_unary", "cacheable_unary", "large_unary", "client_compressed_unary", "client_compressed_unary_noprobe", "server_compressed_unary",
	"client_streaming", "client_compressed_streaming", "client_compressed_streaming_noprobe", "server_streaming", "server_compressed_streaming", "ping_pong", "empty_stream",
	"custom_metadata", "status_code_and_message", "special_status_message", "unimplemented_method", "unimplemented_service",
	"cancel_after_begin", "cancel_after_first_response", "timeout_on_sleeping_server", "very_large_request",
	"pick_first_unary", "rpc_soak", "channel_soak",
}

// Grpc-java's interoperability cases pass against grpc-go's test service on a yodel server, and
// against one that is written with yodel, which serves with TLS too.
func TestJavaClient(t *testing.T) {
	java, classes := realserver.Java(t, "grpc-java")
	native, _ := serveService(t, nil)
	secure, _ := serveServiceOn(t, nil, secureListener(t))
	for _, test := range []struct {
		name, addr, tls string
		known           map[string]string // cases that fail, with the reasons
	}{
		{"grpc-go's service", serveYodel(t), "false", map[string]string{
			"cacheable_unary":             "grpc-go's service does not have the method",
			"client_compressed_unary":     "grpc-go's service does not check whether a request is compressed",
			"client_compressed_streaming": "grpc-go's service does not check whether a request is compressed",
		}},
		{"yodel's service", native, "false", nil},
		{"yodel's service with TLS", secure, "true", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, port, err := net.SplitHostPort(test.addr)
			must(t, err)
			out := run(t, nil, java, append([]string{"-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, "testdata/Interop.java", port, test.tls}, javaCases...)...)
			for _, name := range javaCases {
				if pass, why := strings.Contains(out, "passed "+name+"\n"), test.known[name]; pass != (why == "") {
					t.Errorf("%s: passed is %t, known reason to fail: %q", name, pass, why)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// secureListener returns a listener with the certificate of gRPC's test servers.
func secureListener(t *testing.T) net.Listener {
	t.Helper()
	certificate, err := stdtls.LoadX509KeyPair(testdata.Path("server1.pem"), testdata.Path("server1.key"))
	must(t, err)
	l, err := (&tls.Transport{Server: &stdtls.Config{Certificates: []stdtls.Certificate{certificate}}}).Listen("127.0.0.1:0")
	must(t, err)
	return l
}

// The cases of grpc-go pass between a yodel client and grpc-java's test server, also with TLS.
func TestJavaServer(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %t", secure), func(t *testing.T) { javaServer(t, secure) })
	}
}

func javaServer(t *testing.T, secure bool) {
	java, classes := realserver.Java(t, "grpc-java")
	s := realserver.Start(t, realserver.Program{
		Name: "grpc-java", Install: "nothing: Maven downloads it",
		Find: func() (string, error) { return java, nil },
		Command: func(found, addr, _ string) (*exec.Cmd, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return exec.Command(found, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, "io.grpc.testing.integration.TestServiceServer",
				"--port="+port, fmt.Sprintf("--use_tls=%t", secure)), nil
		},
		Probe: func(ctx context.Context, addr string) error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err == nil {
				err = conn.Close()
			}
			return err
		},
	})
	_, port, err := net.SplitHostPort(s.Addr)
	must(t, err)
	o := &yodel.ClientOptions{Codec: protobuf.Codec, Wires: []yodel.Wire{wire.Wire}}
	if secure {
		authority, err := os.ReadFile(testdata.Path("ca.pem"))
		must(t, err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority)
		o.Transport = &tls.Transport{Client: &stdtls.Config{RootCAs: roots, ServerName: "foo.test.google.fr", NextProtos: []string{"h2"}}}
	}
	c := yodel.NewClient(discovery.Static("grpc://127.0.0.1:"+port), o)
	t.Cleanup(c.Close)
	interopCases(t, grpcgo.Conn(c), nil)
}
