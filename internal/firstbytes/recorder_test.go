// SPDX-License-Identifier: Apache-2.0

package firstbytes_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
)

// exchange returns the Recorder of a client that has sent sent, one byte after the other, and has
// received got.
func exchange(t *testing.T, sent, got string) *firstbytes.Recorder {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	r, conn := firstbytes.Record(client)
	go func() {
		defer server.Close()
		_, _ = io.CopyN(io.Discard, server, int64(len(sent)))
		_, _ = io.WriteString(server, got)
	}()
	for i := range len(sent) {
		if _, err := io.WriteString(conn, sent[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := io.ReadAll(conn); err != nil || string(all) != got {
		t.Fatalf("read %q, %v", all, err)
	}
	return r
}

func TestRecorderRecognizesOtherProtocols(t *testing.T) {
	for _, test := range []struct{ sent, got, want string }{
		{"{", "HTTP/1.1 400 Bad Request\r\n" + strings.Repeat("x", 100), `the server does not speak json: it answered "HTTP/1.1 400 Bad Request"`},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x06\x04\x00\x00\x00\x00\x00", "<nil>"},
		{"{", "", "<nil>"},
	} {
		if got := fmt.Sprint(exchange(t, test.sent, test.got).Mismatch("json")); got != test.want {
			t.Errorf("%q after %q: got %s, want %s", test.got, test.sent, got, test.want)
		}
	}
}

func TestRecorderOfTLSHasItsState(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	hasState := func(nc net.Conn) bool {
		_, conn := firstbytes.Record(nc)
		_, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
		return ok
	}
	if hasState(client) || !hasState(tls.Client(client, &tls.Config{ServerName: "x"})) {
		t.Error("a connection has a state of TLS if and only if the recorded one has it")
	}
}
