// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
)

// A server's middleware sees the request as it came, and can answer it without the method.
func TestMiddlewareOfAServerAnswers(t *testing.T) {
	for _, compressor := range []compress.Compressor{nil, flate.Compressor} {
		var request yodel.Encoded
		answer := &yodel.Encoded{Body: []byte(`"from middleware"`)}
		s := newServer(t, &yodel.ServerOptions{
			Compressors: []compress.Compressor{flate.Compressor},
			Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if err := call.Request(&request); err != nil {
						return err
					}
					if call.Args != nil || call.Streams() || call.Encoding().Name() != "json" {
						t.Errorf("got arguments %v, unary %v, codec %v", call.Args, !call.Streams(), call.Encoding())
					}
					if call.Method == "Same" {
						return next(ctx, call)
					}
					return call.Answer(answer)
				}
			}},
		})
		handle(t, s, "Upper", func(context.Context, *string) (*string, error) {
			t.Error("the method was executed")
			return nil, nil
		})
		handle(t, s, "Same", echo)
		handle(t, s, "Pair", func(a, b string) (string, string) { return a, b })
		c := connect(t, s, &yodel.ClientOptions{Compressor: compressor, CompressAbove: 10})
		long, reply := strings.Repeat("x", 1000), ""
		must(t, c.Call(t.Context(), "Upper", &long, &reply))
		if reply != "from middleware" || string(request.Body) != `"`+long+`"` || request.Several {
			t.Errorf("got %q to %q", reply, request.Body)
		}
		must(t, c.Call(t.Context(), "Same", &long, &reply)) // what was looked at is decoded all the same
		if reply != long {
			t.Errorf("got %q", reply)
		}
		if err := c.Call(t.Context(), "Pair", yodel.Values{"a", "b"}, yodel.Values{&long, &long}); !errors.Is(err, yodel.Internal) || !request.Several {
			t.Errorf("one value for two: got %v", err)
		}
		for _, wrong := range []*yodel.Call{{Method: "Nobody", Args: "x"}, {Method: "Upper", Args: yodel.Values{"x"}}} {
			if err := c.Do(t.Context(), wrong); err == nil {
				t.Errorf("%s: middleware answered a call that cannot succeed", wrong.Method)
			}
		}
	}
}

// What has become of the call that it was made of does not touch it.
func TestACallApartOutlastsItsOwn(t *testing.T) {
	release, executed := make(chan struct{}), make(chan yodel.Metadata, 2)
	s := newServer(t, nil)
	handle(t, s, "Slow", func(ctx context.Context, in *string) (*string, error) {
		call := yodel.CallFrom(ctx)
		if call.Metadata["apart"] != "" {
			<-release
		}
		executed <- yodel.Metadata{"tenant": call.Tenant, "attachment": string(call.Attachment), "user": call.Metadata["user"]}
		return in, nil
	})
	replies := make(chan string, 1)
	c := connect(t, s, &yodel.ClientOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			var request, reply yodel.Encoded
			must(t, call.Request(&request))
			apart := call.Attempts().Detach()
			if apart == nil {
				return next(ctx, call)
			}
			apart.Args, apart.Reply = &request, &reply
			apart.Metadata["apart"] = "1"
			if !call.Client().Background(func(closing context.Context) {
				if err := next(closing, apart); err != nil {
					t.Error(err)
				}
				apart.Attempts().Join(false)
				replies <- string(reply.Body)
			}) {
				t.Error("the client is not closed")
			}
			return next(ctx, call)
		}
	}}})
	text, reply := "hello", ""
	call := &yodel.Call{
		Method: "Slow", Args: &text, Reply: &reply, Tenant: "acme", Attachment: []byte("attached"), Metadata: yodel.Metadata{"user": "ali"},
		Deadline: time.Now().Add(time.Hour),
	}
	must(t, c.Do(t.Context(), call))
	text, call.Attachment[0], call.Metadata["user"] = "changed", '!', "bob" // which are the user's again
	close(release)
	if got := receive(t, replies, "the call apart has ended"); got != `"hello"` || reply != "hello" {
		t.Errorf("got %s and %q", got, reply)
	}
	for range 2 {
		if got := <-executed; got["tenant"] != "acme" || got["attachment"] != "attached" || got["user"] != "ali" {
			t.Errorf("executed with %v", got)
		}
	}
	must(t, c.Do(t.Context(), &yodel.Call{Method: "Slow", Args: "x", OneWay: true})) // there is none apart
	<-executed
	c.Close()
	if c.Background(func(context.Context) { t.Error("it runs") }) {
		t.Error("a closed client has goroutines")
	}
}

func TestAClientsGoroutineEndsWithIt(t *testing.T) {
	c := yodel.Dial()
	ended := false
	c.Background(func(ctx context.Context) {
		<-ctx.Done()
		ended = true
	})
	c.Close()
	if !ended {
		t.Error("Close did not wait")
	}
}

func TestACallOfNobodysHasNoCodec(t *testing.T) {
	call := &yodel.Call{Method: "A", Args: 1, Reply: new(int)}
	if err := call.Request(new(yodel.Encoded)); !errors.Is(err, yodel.Internal) {
		t.Errorf("got %v", err)
	}
	if err := call.Answer(new(yodel.Encoded)); !errors.Is(err, yodel.Internal) || call.Encoding() != nil || call.Attempts().Detach() != nil {
		t.Errorf("got %v", err)
	}
	call.Codec = yodel.JSON
	e := &yodel.Encoded{Body: bytes.Repeat([]byte{1}, 10)}
	must(t, call.Request(e))
	if string(e.Body) != "1" {
		t.Errorf("got %s", e.Body)
	}
	must(t, call.Answer(&yodel.Encoded{Body: []byte("7")}))
	if *call.Reply.(*int) != 7 {
		t.Errorf("got %v", *call.Reply.(*int))
	}
}
