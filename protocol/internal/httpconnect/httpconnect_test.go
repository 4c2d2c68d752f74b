// SPDX-License-Identifier: Apache-2.0

package httpconnect_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/protocol/internal/httpconnect"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// What follows the answer belongs to the protocol. Another answer, one without an end, and the end
// of the connection are errors.
func TestAsk(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.0 200 Connected to Go RPC\n\nfirst": "",
		"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nfirst": "",
		"HTTP/1.1 404 Not Found\r\n\r\n":            `the server answered CONNECT /_rpc_ with "HTTP/1.1 404 Not Found"`,
		"":                                          "read the answer to CONNECT /_rpc_: unexpected EOF",
		"HTTP/1.1 200 OK\r\nServer: x\r\n":          "read the answer to CONNECT /_rpc_: unexpected EOF",
		"HTTP/1.1 200 OK\r\n" + strings.Repeat("x: y\n", 2000): "read the answer to CONNECT /_rpc_: it has more than 8 KiB",
	} {
		near, far := net.Pipe()
		go func() {
			if want != "" {
				defer far.Close() // otherwise the connection is in use
			}
			lines := bufio.NewReader(far)
			_, _ = lines.ReadString('\n')
			_, _ = lines.ReadString('\n')
			_, _ = far.Write([]byte(answer))
		}()
		reader := bufio.NewReaderSize(near, 32<<10)
		err := httpconnect.Ask(t.Context(), near, reader, "/_rpc_")
		switch {
		case want != "" && (err == nil || err.Error() != want):
			t.Errorf("%.40q: got %v, want %s", answer, err, want)
		case want == "" && err != nil:
			t.Errorf("%.40q: %v", answer, err)
		case want == "":
			if rest, err := reader.Peek(5); string(rest) != "first" {
				t.Errorf("%.40q: behind the answer is %q, %v", answer, rest, err)
			}
		}
		_ = near.Close()
		_ = far.Close()
	}
}

func TestAskEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = far.Read(make([]byte, 100)) }()
		ended := make(chan error, 1)
		go func() { ended <- httpconnect.Ask(ctx, near, bufio.NewReader(near), "/x") }()
		time.Sleep(time.Hour) // the server does not answer
		cancel()
		if err := <-ended; err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
