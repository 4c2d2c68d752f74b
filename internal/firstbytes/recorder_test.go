// SPDX-License-Identifier: Apache-2.0

package firstbytes_test

import (
	"crypto/tls"
	"errors"
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

// A Wire may write to the socket below a Recorder, for example several parts with one system call
// (writev). The Recorder does not see what the client has sent then, so an answer in HTTP says
// nothing: the call may have been executed.
func TestRecorderDoesNotJudgeWhatTheSocketSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	parts := func() *net.Buffers { return &net.Buffers{[]byte("POST / HTTP/1.1\r\n"), []byte("\r\n")} }
	size := len("POST / HTTP/1.1\r\n\r\n")
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			for range 2 {
				nc, err := l.Accept()
				if err != nil {
					return err
				}
				if _, err = io.CopyN(io.Discard, nc, int64(size)); err == nil {
					_, err = io.WriteString(nc, "HTTP/1.1 200 OK\r\n")
				}
				if err = errors.Join(err, nc.Close()); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	for _, direct := range []bool{false, true} {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		r, conn := firstbytes.Record(nc)
		to := conn
		if direct {
			to = conn.(interface{ NetConn() net.Conn }).NetConn()
		}
		if _, vectored := to.(*net.TCPConn); vectored != direct {
			t.Errorf("the connection below is a %T", to)
		}
		if n, err := parts().WriteTo(to); n != int64(size) || err != nil {
			t.Fatalf("wrote %d bytes, %v", n, err)
		}
		if all, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200") {
			t.Fatalf("read %q, %v", all, err)
		}
		if err := r.Mismatch("http"); err != nil {
			t.Errorf("written to the socket itself %v: %v", direct, err)
		}
		nc.Close()
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
