// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/yodel-rpc/yodel"
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
