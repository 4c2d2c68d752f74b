// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// A header reaches the caller, with a reply, with an error, at the end of a stream, and from a
// server of the same process. The header of an earlier attempt does not.
func TestHeadersOfReplies(t *testing.T) {
	s := newServer(t, nil)
	want := yodel.Metadata{"cost": "3"}
	handle(t, s, "Header", func(ctx context.Context, fail *bool) (*int, error) {
		yodel.CallFrom(ctx).SetHeader(want)
		yodel.CallFrom(ctx).Trailer = yodel.Metadata{"last": "1"}
		if *fail {
			return nil, yodel.Errorf(yodel.NotFound, "no such thing")
		}
		return new(1), nil
	})
	const feed yodel.Feed[int, int] = "Feed"
	feed.Handle(s, func(ctx context.Context, _ *int, send yodel.Send[int]) error {
		yodel.CallFrom(ctx).SetHeader(want)
		return send(new(1))
	})
	c := connect(t, s, nil)
	for name, caller := range map[string]yodel.Caller{"client": c, "server": s} {
		for _, fail := range []bool{false, true} {
			call := &yodel.Call{Method: "Header", Args: &fail, Reply: new(int)}
			call.SetHeader(yodel.Metadata{"old": "1"})
			err := caller.Do(t.Context(), call)
			if (err != nil) != fail || !maps.Equal(call.Header(), want) || call.Trailer["last"] != "1" {
				t.Errorf("%s, fail %v: got the header %v, the trailer %v and %v", name, fail, call.Header(), call.Trailer, err)
			}
		}
	}
	call := new(yodel.Call)
	for _, err := range feed.Do(t.Context(), c, call, new(1)) {
		must(t, err)
	}
	if !maps.Equal(call.Header(), want) {
		t.Errorf("a feed: got the header %v", call.Header())
	}
	call = &yodel.Call{Method: "Nothing", Args: new(0)}
	call.SetHeader(want)
	if err := c.Do(t.Context(), call); err == nil || call.Header() != nil {
		t.Errorf("an unknown method: got the header %v and %v", call.Header(), err)
	}
}

// A reply lacks the pairs of a header that exceed the limits. Its outcome is the method's.
func TestHeaderTooLarge(t *testing.T) {
	var log bytes.Buffer
	s := newServer(t, &yodel.ServerOptions{Limits: yodel.Limits{MaxMetadata: 1000}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	handle(t, s, "Header", func(ctx context.Context, n *int) (*int, error) {
		yodel.CallFrom(ctx).SetHeader(yodel.Metadata{"long": strings.Repeat("x", 2000), "short": "1", "zero": ""})
		if *n == 0 {
			return nil, yodel.Errorf(yodel.NotFound, "nothing")
		}
		return n, nil
	})
	c := connect(t, s, nil)
	for _, n := range []int{7, 0} {
		call, got := &yodel.Call{Method: "Header", Args: &n}, 0
		call.Reply = &got
		err := c.Do(t.Context(), call)
		if want := (yodel.Metadata{"short": "1", "zero": ""}); got != n || n == 0 != errors.Is(err, yodel.NotFound) || !maps.Equal(call.Header(), want) {
			t.Errorf("got %d, %v and the header %v", got, err, call.Header())
		}
	}
	if n := s.Stats().LeftOut; n != 2 {
		t.Errorf("the statistics have %d pairs that were left out, want 2", n)
	}
	c.Close()
	const line = `msg="yodel: a reply was sent without a part of its metadata" method=Header key=long reason="with it, the metadata has`
	if said := log.String(); !strings.Contains(said, line) || strings.Contains(said, "xxx") {
		t.Errorf("the log is %s", said)
	}
}

// Values of an Encoded are those that SetValues encoded.
func TestValuesOfAnEncoded(t *testing.T) {
	for _, values := range [][][]byte{nil, {{}}, {[]byte("1"), nil, bytes.Repeat([]byte("x"), 300)}} {
		e := new(yodel.Encoded)
		e.SetValues(values...)
		got, err := e.Values()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(values) {
			t.Errorf("got %v, %v, want %v", got, err, values)
		}
		for n := range e.Body {
			if got, err := (&yodel.Encoded{Body: e.Body[:n], Several: true}).Values(); err == nil {
				t.Errorf("%v without its end: got %v", values, got)
			}
		}
		e.Body = append(e.Body, 0)
		if got, err := e.Values(); err == nil {
			t.Errorf("%v and a byte: got %v", values, got)
		}
	}
	if got, err := (&yodel.Encoded{Body: []byte("x")}).Values(); err != nil || len(got) != 1 || string(got[0]) != "x" {
		t.Errorf("one message: got %q, %v", got, err)
	}
}

// A Protocol can execute methods with several values.
func TestValuesOverASession(t *testing.T) {
	network := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
		v := s.Begin("shop/DivMod", s.Codec("json"), nil)
		defer v.End()
		request := new(yodel.Encoded)
		request.SetValues([]byte("17"), []byte("5"))
		v.Body, v.Several = request.Body, v.Positional()
		if e := v.Admit(len(v.Body), true); e != nil {
			return e
		}
		if e := v.Run(); e != nil {
			return e
		}
		body, _, e := v.AppendReply(nil)
		if e != nil {
			return e
		}
		values, err := (&yodel.Encoded{Body: body, Several: true}).Values()
		_, _ = fmt.Fprintf(s, "%s %s %v\n", values, v.Call().Method, err)
		return s.Next()
	}}, yodel.ServerOptions{})
	handle(t, network.Server, "shop.DivMod", func(a, b int) (int, int, error) { return a / b, a % b, nil })
	if got := ask(t, network.dial(t), "DivMod", ""); got != "[3 2] shop.DivMod <nil>" {
		t.Errorf("got %s", got)
	}
}

// A Protocol learns which types a method has, so that it can encode the request in the right way.
func TestTypesOfAServedCall(t *testing.T) {
	network := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
		var line []string
		for _, method := range []string{"One", "Two", "Any", "Nothing"} {
			v := s.Begin(method, s.Codec("json"), nil)
			in, out := v.Types()
			line = append(line, fmt.Sprint(in, out))
			v.End()
		}
		_, _ = fmt.Fprintln(s, strings.Join(line, "; "))
		return s.Next()
	}}, yodel.ServerOptions{})
	handle(t, network.Server, "One", func(_ context.Context, in *Args) (*Reply, error) { return new(Reply), nil })
	handle(t, network.Server, "Two", func(a int, b *string) (bool, error) { return true, nil })
	must(t, network.HandleCall("Any", func(context.Context, *yodel.Call) error { return nil }))
	want := "[yodel_test.Args] [yodel_test.Reply]; [int *string] [bool]; [] []; [] []"
	if got := ask(t, network.dial(t), "One", ""); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
