// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// Whose the memory of a stream's messages is.

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
