// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	std "net/http"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// echoed answers a request with its body.
func echoed(w std.ResponseWriter, r *std.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(std.StatusBadRequest)
		return
	}
	_, _ = w.Write(body) // a client fails without it
}

// serveYodel serves echoed in a server of yodel.
func serveYodel(l net.Listener) (stop func(), err error) {
	s := yodel.NewServer(&yodel.ServerOptions{
		Protocols: []yodel.Protocol{http.New(&http.Options{Handler: std.HandlerFunc(echoed)})}, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	go func() { _ = s.Serve(ctx, l) }() // as above
	return stop, nil
}

// serveStandard serves echoed in a server of net/http.
func serveStandard(l net.Listener) (stop func(), err error) {
	s := &std.Server{Handler: std.HandlerFunc(echoed)} // #nosec G112 -- its clients are fast
	go func() { _ = s.Serve(l) }()                     // as above
	return func() { _ = s.Close() }, nil
}
