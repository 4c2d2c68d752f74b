// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	connectwire "github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/yodeltest"
)

const (
	count yodel.Feed[int, int]   = "Stream.Count" // counts up to its argument
	sum   yodel.Upload[int, int] = "Stream.Sum"
	echo2 yodel.Duplex[int, int] = "Stream.Echo"
)

func streams(s *yodel.Server) {
	count.Handle(s, func(_ context.Context, in *int, send yodel.Send[int]) error {
		for i := range *in {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		total := 0
		for n, err := range recv {
			if err != nil {
				return nil, err
			}
			total += *n
		}
		return &total, nil
	})
	echo2.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if err := send(n); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestStreamsOfAllKinds(t *testing.T) {
	s := yodeltest.NewServer(t, nil)
	streams(s.Server)
	c := yodeltest.NewClient(t, nil, s)
	ctx := t.Context()

	const many = 10_000
	want, n := 0, many
	for i, err := range count.Call(ctx, c, &n) {
		if err != nil || *i != want {
			t.Fatal(i, err, want)
		}
		want++
	}
	if want != many {
		t.Errorf("got %d messages, want %d", want, many)
	}

	total, err := sum.Call(ctx, c, func(send yodel.Send[int]) error {
		for i := range many {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || *total != many*(many-1)/2 {
		t.Errorf("got %v, %v", total, err)
	}

	err = echo2.Call(ctx, c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for i := range 1000 {
			if err := send(&i); err != nil {
				return err
			}
			if got, err := recv.Next(); err != nil || *got != i {
				t.Errorf("got %v, %v, want %d", got, err, i)
			}
		}
		if err := send.End(); err != nil {
			return err
		}
		if _, err := recv.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// nilMessages sends 1, a nil message and 2, ends the stream, and sends a nil message once more.
func nilMessages(t *testing.T, send yodel.Send[int]) error {
	t.Helper()
	failed := func(when string) {
		if e := wantError(t, send(nil), yodel.InvalidArgument, "YDL2103"); !strings.HasSuffix(e.Message, ": a message of the stream is a nil pointer; Send.End ends the stream") {
			t.Errorf("%s the end: %v", when, e)
		}
	}
	one, two := 1, 2
	if err := send(&one); err != nil {
		return err
	}
	failed("before")
	if err := send(&two); err != nil {
		t.Errorf("after a nil message: %v", err)
	}
	wrapped := yodel.Send[int](func(msg *int) error { return fmt.Errorf("wrapped: %w", send(msg)) })
	for _, end := range []yodel.Send[int]{send, send, wrapped} { // twice is allowed
		if err := end.End(); err != nil {
			t.Errorf("End: %v", err)
		}
	}
	failed("after")
	if err := send(&one); yodel.CodeOf(err) != yodel.FailedPrecondition {
		t.Errorf("after the end: got %v", err)
	}
	return nil
}

// The pointer to a message is the program's: nil is a mistake, as in a unary call, and not the end.
func TestANilMessageIsAnError(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{http.New(nil)}})
	streams(s)
	const nils yodel.Feed[Empty, int] = "Stream.Nils"
	nils.Handle(s, func(_ context.Context, _ *Empty, send yodel.Send[int]) error { return nilMessages(t, send) })
	const nils2 yodel.Duplex[int, int] = "Stream.Nils2"
	nils2.Handle(s, func(_ context.Context, _ yodel.Recv[int], send yodel.Send[int]) error { return nilMessages(t, send) })
	const dynamic yodel.Feed[Empty, int] = "Stream.Dynamic"
	must(t, s.HandleStream(string(dynamic), "feed", func(_ context.Context, _ *yodel.Call, _, send func(any) error) error {
		for _, msg := range []any{nil, (*int)(nil), (*struct{})(nil)} {
			wantError(t, send(msg), yodel.InvalidArgument, "YDL2103")
		}
		return errors.Join(send(1), send(new(2)))
	}))
	addr := serve(t, s)
	wire := connectwire.Wire(nil)
	for name, c := range map[string]*yodel.Client{
		"native":  newClient(t, nil, addr),
		"connect": newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{wire}}, wire.Name()+"://"+addr),
	} {
		t.Run(name, func(t *testing.T) {
			for _, feed := range []yodel.Feed[Empty, int]{nils, dynamic} {
				wantNumbers(t, feed.Call(t.Context(), c, &Empty{}))
			}
			must(t, nils2.Call(t.Context(), c, func(recv yodel.Recv[int], _ yodel.Send[int]) error {
				wantNumbers(t, recv)
				return nil
			}))
			total, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error { return nilMessages(t, send) })
			if err != nil || *total != 3 {
				t.Errorf("the upload: got %v, %v, want 3", total, err)
			}
			must(t, echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
				must(t, nilMessages(t, send))
				wantNumbers(t, recv)
				return nil
			}))
			_, err = sum.Call(t.Context(), c, func(send yodel.Send[int]) error { return send(nil) })
			wantError(t, err, yodel.InvalidArgument, "YDL2103")
		})
	}
}

// wantNumbers checks that a stream has the messages 1 and 2, and then ends.
func wantNumbers(t *testing.T, recv yodel.Recv[int]) {
	t.Helper()
	var got []int
	for n, err := range recv {
		must(t, err)
		got = append(got, *n)
	}
	if !slices.Equal(got, []int{1, 2}) {
		t.Errorf("got %v, want 1 and 2", got)
	}
}

// Where nil is a value of the type of the messages, it is a message.
func TestNilValuesAreMessages(t *testing.T) {
	s := yodel.NewServer(nil)
	c := connect(t, s, nil)
	carriesNil[[]int](t, s, c)
	carriesNil[map[string]int](t, s, c)
	carriesNil[*int](t, s, c)
	carriesNil[any](t, s, c)
	carriesNil[json.RawMessage](t, s, c)
}

func carriesNil[T any](t *testing.T, s *yodel.Server, c *yodel.Client) {
	t.Helper()
	echo := yodel.Duplex[T, T](fmt.Sprintf("Nil.%T", new(T)))
	echo.Handle(s, func(_ context.Context, recv yodel.Recv[T], send yodel.Send[T]) error {
		for msg, err := range recv {
			if err = errors.Join(err, send(msg)); err != nil {
				return err
			}
		}
		return nil
	})
	must(t, echo.Call(t.Context(), c, func(recv yodel.Recv[T], send yodel.Send[T]) error {
		for range 2 {
			if err := send(new(T)); err != nil {
				return err
			}
			if msg, err := recv.Next(); err != nil {
				t.Errorf("%T: got %v, %v", msg, msg, err)
			}
		}
		return nil
	}))
}
