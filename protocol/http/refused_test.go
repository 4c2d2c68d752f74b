// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	std "net/http"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// refusals are requests of HTTP/1 that the server answers before it reads the body.
var refusals = []struct {
	name, headers string
	status        int
}{
	{"media type", "POST /Test/Echo HTTP/1.1\r\nContent-Type: application/x-unknown\r\n", 415},
	{"compression", "POST /Test/Echo HTTP/1.1\r\nContent-Type: application/json\r\nContent-Encoding: x-unknown\r\n", 501},
	{"gRPC-Web", "POST /Test/None HTTP/1.1\r\nContent-Type: application/grpc-web+json\r\n", 200},
	{"stream of Connect", "POST /Test/None HTTP/1.1\r\nContent-Type: application/connect+json\r\n", 200},
	{"JSON-RPC", "POST /rpc HTTP/1.1\r\nContent-Type: text/plain\r\n", 415},
	{"OpenAPI", "GET /openapi.json HTTP/1.1\r\n", 200},
}

// exchangeRaw sends a request with a part of its body, reads the response, and returns its status
// and whether it closes the connection.
func exchangeRaw(t *testing.T, conn net.Conn, from *bufio.Reader, headers string, size int, body string) (status int, closes bool) {
	t.Helper()
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err := fmt.Fprintf(conn, "%sHost: test\r\nContent-Length: %d\r\n\r\n%s", headers, size, body)
	must(t, err)
	response, err := std.ReadResponse(from, nil)
	must(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	must(t, err)
	must(t, response.Body.Close())
	return response.StatusCode, response.Close
}

// The server reads a refused body of moderate size, so that the connection carries further calls.
func TestRefusedBodyKeepsTheConnection(t *testing.T) {
	s := newSite(t, &http.Options{JSONRPC: "/rpc", OpenAPI: "/openapi.json"}, yodel.ServerOptions{})
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.addr)
			must(t, err)
			defer conn.Close()
			from := bufio.NewReader(conn)
			for range 3 {
				status, closes := exchangeRaw(t, conn, from, test.headers, 400<<10, strings.Repeat(" ", 400<<10))
				if status != test.status || closes {
					t.Fatalf("got status %d, closing %t, want status %d and an open connection", status, closes, test.status)
				}
			}
		})
	}
}

// The response to a refused request does not wait for a body that does not come.
func TestRefusedBodyThatDoesNotCome(t *testing.T) {
	s := newSite(t, &http.Options{JSONRPC: "/rpc", OpenAPI: "/openapi.json"}, yodel.ServerOptions{})
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.addr)
			must(t, err)
			defer conn.Close()
			if status, _ := exchangeRaw(t, conn, bufio.NewReader(conn), test.headers, 1000, "x"); status != test.status {
				t.Errorf("got status %d, want %d", status, test.status)
			}
		})
	}
}

// A client that asks before it sends its body gets the refusal, and is not asked for the body.
func TestRefusedBodyThatWasNotAskedFor(t *testing.T) {
	s := newSite(t, &http.Options{JSONRPC: "/rpc", OpenAPI: "/openapi.json"}, yodel.ServerOptions{})
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.addr)
			must(t, err)
			defer conn.Close()
			if status, _ := exchangeRaw(t, conn, bufio.NewReader(conn), test.headers+"Expect: 100-continue\r\n", 1000, ""); status != test.status {
				t.Errorf("got status %d, want %d", status, test.status)
			}
		})
	}
}
