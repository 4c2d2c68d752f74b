// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
)

// What middleware of a server sees of a request before the method does.
func TestTheBodyOfARequest(t *testing.T) {
	var bodies []string
	var fault error
	look := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			body, err := call.Body()
			if fault = err; err != nil {
				return err
			}
			if again, err := call.Body(); err != nil || string(again) != string(body) {
				t.Errorf("the second time it is %.40q, %v", again, err)
			}
			bodies = append(bodies, string(body))
			if call.Executed() || call.Streams() {
				t.Error("it has been executed, or has a stream")
			}
			err = next(ctx, call)
			if !call.Executed() {
				t.Error("it was not executed")
			}
			return err
		}
	}
	compressor := flate.Compressor
	s := newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{look}, Compressors: []compress.Compressor{compressor}})
	length := func(in *string) (*int, error) { n := len(*in); return &n, nil }
	handle(t, s, "Length", func(_ context.Context, in *string) (*int, error) { return length(in) })
	handle(t, s, "View", func(_ context.Context, in *raw.View) (*[]byte, error) {
		out := []byte(strings.ToUpper(string(*in)))
		return &out, nil
	})
	large := strings.Repeat("x", 10_000)
	for _, o := range []*yodel.ClientOptions{nil, {Compressor: compressor}} {
		var n int
		must(t, connect(t, s, o).Call(t.Context(), "Length", &large, &n))
		if n != len(large) || bodies[len(bodies)-1] != `"`+large+`"` {
			t.Errorf("with %+v: the method got %d bytes, and the middleware %d", o, n, len(bodies[len(bodies)-1]))
		}
		message, upper := []byte(large), []byte(nil)
		must(t, connect(t, s, o).Do(t.Context(), &yodel.Call{Method: "View", Args: &message, Reply: &upper, Codec: raw.Codec}))
		if string(upper) != strings.ToUpper(large) || bodies[len(bodies)-1] != large {
			t.Errorf("raw, with %+v: the method got %d bytes, and the middleware %d", o, len(upper), len(bodies[len(bodies)-1]))
		}
	}
	if err := connect(t, s, nil).Call(t.Context(), "Nothing", &large, nil); !errors.Is(err, yodel.Unimplemented) || !errors.Is(fault, yodel.Unimplemented) {
		t.Errorf("of a method that does not exist: %v, %v", err, fault)
	}
	if body, err := new(yodel.Call).Body(); body != nil || err != nil || new(yodel.Call).Executed() || new(yodel.Call).Streams() {
		t.Errorf("of a call of a client: %q, %v", body, err)
	}
}
