// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

// javaCases are the test cases of grpc-java's client that need neither credentials nor ORCA.
var javaCases = []string{
	"empty_unary", "cacheable_unary", "large_unary", "client_compressed_unary", "client_compressed_unary_noprobe", "server_compressed_unary",
	"client_streaming", "client_compressed_streaming", "server_streaming", "server_compressed_streaming", "ping_pong", "empty_stream",
	"custom_metadata", "status_code_and_message", "special_status_message", "unimplemented_method", "unimplemented_service",
	"cancel_after_begin", "cancel_after_first_response", "timeout_on_sleeping_server", "very_large_request",
}

// Grpc-java's interoperability cases pass against grpc-go's test service on a yodel server, and
// against one that is written with yodel.
func TestJavaClient(t *testing.T) {
	java, classes := realserver.Java(t, "grpc-java")
	native, _ := serveService(t, nil)
	for _, test := range []struct {
		name, addr string
		known      map[string]string // cases that fail, with the reasons
	}{
		{"grpc-go's service", serveYodel(t), map[string]string{
			"cacheable_unary":             "grpc-go's service does not have the method",
			"client_compressed_unary":     "grpc-go's service does not check whether a request is compressed",
			"client_compressed_streaming": "grpc-go's service does not check whether a request is compressed",
		}},
		{"yodel's service", native, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, port, err := net.SplitHostPort(test.addr)
			must(t, err)
			out := run(t, nil, java, append([]string{"-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, "testdata/Interop.java", port}, javaCases...)...)
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

// The cases of grpc-go pass between a yodel client and grpc-java's test server.
func TestJavaServer(t *testing.T) {
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
				"--port="+port, "--use_tls=false"), nil
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
	interopCases(t, clientOf(t, "grpc://127.0.0.1:"+port), nil)
}
