// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/compress/gzip"
)

// A Protocol learns which services the server has, in both spellings of methods, and after a method
// was added.
func TestServicesOfASession(t *testing.T) {
	asked := make(chan map[string]bool)
	s := serveLines(t, lines{serve: func(_ context.Context, session *yodel.Session) error {
		got := make(map[string]bool)
		for _, service := range []string{"", "Arith", "Arith.Mul", "shop.Cart", "shop", "Later"} {
			got[service] = session.HasService(service)
		}
		asked <- got
		return nil
	}}, yodel.ServerOptions{})
	handle(t, s.Server, "Arith.Mul", echo)
	handle(t, s.Server, "shop.Cart/Add", echo)
	for _, later := range []bool{false, true} {
		if later {
			handle(t, s.Server, "Later.Echo", echo)
		}
		if _, err := s.dial(t).Write([]byte("!")); err != nil {
			t.Fatal(err)
		}
		for service, got := range <-asked {
			if want := service == "Arith" || service == "shop.Cart" || later && service == "Later"; got != want {
				t.Errorf("later %v: %q: got %v", later, service, got)
			}
		}
	}
}

// Compressing returns the compressor of the call, or that of the client.
func TestCompressorOfACall(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor, gzip.Compressor}})
	handle(t, s, "Echo", echo)
	var got compress.Compressor
	c := connect(t, s, &yodel.ClientOptions{Compressor: flate.Compressor, Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			got = call.Compressing()
			return next(ctx, call)
		}
	}}})
	for _, own := range []compress.Compressor{nil, gzip.Compressor} {
		must(t, c.Do(t.Context(), &yodel.Call{Method: "Echo", Args: new("x"), Compressor: own}))
		if want := own; want == nil && got != flate.Compressor || want != nil && got != want {
			t.Errorf("the compressor of the call is %v: got %v", own, got)
		}
	}
	if got := new(yodel.Call).Compressing(); got != nil {
		t.Errorf("without a client: got %v", got)
	}
}
