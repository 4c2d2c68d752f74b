// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"log/slog"
	std "net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
)

// A handler that ends the goroutine which reads its connection ends neither the connection nor its
// session, and nobody takes that for a fault of the protocol.
func TestAHandlerEndsTheGoroutineOfItsConnection(t *testing.T) {
	var log testserve.Log
	s := newSite(t, nil, yodel.ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, s.Handle("Test.Leave", func(_ context.Context, in *text) (*text, error) {
		if in.Text == "leave" {
			runtime.Goexit()
		}
		return in, nil
	}))
	c := client(t, true)
	call := func(what, status string) {
		t.Helper()
		r := s.do(c, "POST", "/Test/Leave", string(envelope(0, `{"text":"`+what+`"}`)), "Content-Type", "application/grpc+json")
		if got := r.Trailer.Get("Grpc-Status") + r.Header.Get("Grpc-Status"); r.StatusCode != std.StatusOK || got != status {
			t.Errorf("%s: got %d and %q, want %q", what, r.StatusCode, got, status)
		}
	}
	for range 10 {
		for range 200 { // so that the server knows that the method is short
			call("stay", "0")
		}
		call("leave", "13")
	}
	if n := s.Stats().Conns; n != 1 {
		t.Errorf("there are %d connections", n)
	}
	eventually(t, "the session ends", func() bool {
		c.CloseIdleConnections() // the client may still be using it
		return s.Stats().Conns == 0
	})
	if said := log.String(); strings.Contains(said, "protocol http") || strings.Contains(said, "YDL1106") {
		t.Errorf("the log has\n%s", said)
	}
}
