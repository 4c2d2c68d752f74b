// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// Whose the memory of a stream's messages is.

// Messages that came together share memory, and nobody can tell: each stays as it is, whatever is
// done with the others.
func TestRawMessagesAreTheirReceivers(t *testing.T) {
	const rounds = 500
	sizes := []int{128, 0, 1, 128, 128, 3000, 100, 128, 70_000, 2048, 12, 128}
	message := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, sizes[i%len(sizes)]) }
	s := yodeltest.NewServer(t, nil)
	all := yodel.Feed[[]byte, []byte]("Raw.All")
	all.Handle(s.Server, func(_ context.Context, _ *[]byte, send yodel.Send[[]byte]) error {
		for i := range rounds {
			msg := message(i)
			if err := send(&msg); err != nil {
				return err
			}
			clear(msg) // Send keeps nothing
		}
		return nil
	})
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Codec: yodel.Raw}, s)
	var got []*[]byte
	for msg, err := range all.Call(t.Context(), c, new([]byte)) {
		must(t, err)
		got = append(got, msg)
	}
	if len(got) != rounds {
		t.Fatalf("got %d messages, want %d", len(got), rounds)
	}
	for i, msg := range got {
		if !bytes.Equal(*msg, message(i)) {
			t.Fatalf("message %d has %d bytes, and not those that were sent", i, len(*msg))
		}
		*msg = append(*msg, "more"...)
		clear(*msg)
	}
}

// A pair is a message with something that JSON leaves out when it is zero.
type pair struct {
	Name  string `json:",omitempty"`
	Value int    `json:",omitempty"`
}

// With Reuse there is one message, in every position that a Recv has, and nothing of the one before
// is left in it.
func TestReuseReceivesIntoOneMessage(t *testing.T) {
	sent := []pair{{"one", 1}, {"two", 0}, {"", 3}, {}, {"five", 5}}
	feed, upload, duplex := yodel.Feed[pair, pair]("Reuse.Feed"), yodel.Upload[pair, pair]("Reuse.Upload"), yodel.Duplex[pair, pair]("Reuse.Duplex")
	sendAll := func(send yodel.Send[pair]) error {
		for i := range sent {
			if err := send(&sent[i]); err != nil {
				return err
			}
		}
		return send.End()
	}
	check := func(recv yodel.Recv[pair]) error {
		var one *pair
		n := 0
		for msg, err := range recv {
			if err != nil {
				return err
			}
			if one == nil {
				one = msg
			}
			if msg != one || *msg != sent[n] {
				t.Errorf("message %d is %+v, at the place of the first one: %t; want %+v", n, *msg, msg == one, sent[n])
			}
			n++
		}
		if n != len(sent) {
			t.Errorf("got %d messages, want %d", n, len(sent))
		}
		return nil
	}
	s := yodeltest.NewServer(t, nil)
	feed.Handle(s.Server, func(_ context.Context, _ *pair, send yodel.Send[pair]) error { return sendAll(send) })
	upload.Handle(s.Server, func(_ context.Context, recv yodel.Recv[pair]) (*pair, error) { return &pair{}, check(recv.Reuse()) })
	duplex.Handle(s.Server, func(_ context.Context, recv yodel.Recv[pair], send yodel.Send[pair]) error {
		if err := check(recv.Reuse()); err != nil {
			return err
		}
		return sendAll(send)
	})
	c, ctx := yodeltest.NewClient(t, nil, s), t.Context()
	must(t, check(feed.Call(ctx, c, &pair{}).Reuse()))
	_, err := upload.Call(ctx, c, sendAll)
	must(t, err)
	must(t, duplex.Call(ctx, c, func(recv yodel.Recv[pair], send yodel.Send[pair]) error {
		if err := sendAll(send); err != nil {
			return err
		}
		return check(recv.Reuse())
	}))
}

// What a loop has left is there after it, also the memory: the next loop over a Recv goes on with
// it.
func TestReuseLastsOverLoops(t *testing.T) {
	s := yodeltest.NewServer(t, nil)
	streams(s.Server)
	c := yodeltest.NewClient(t, nil, s)
	must(t, echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		recv.Reuse()
		var last *int
		for i := range 5 {
			must(t, send(&i))
			msg, err := recv.Next()
			if err != nil || *msg != i || last != nil && msg != last {
				t.Errorf("got %v, %v, want %d in one place", msg, err, i)
			}
			last = msg
		}
		return nil
	}))
}
