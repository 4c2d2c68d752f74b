// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"

	"github.com/yodel-rpc/yodel"
)

// This file is the callers' side of streams that outlive the servers. A server that drains ends its
// streams without an error, and says how far it has come. The caller opens the next stream, which
// goes to another server, and goes on behind that. Nothing is dealt with twice, because it sends
// again only what no server has looked at.
//
// An error is another matter, a server that has crashed perhaps. A feed can go on behind the last
// item that came. Who sends items does not know how far the server has come: only then has the
// service to recognize items that it knows.

// region follow

// follow receives the items of a stream, on as many feeds as it takes.
func follow(ctx context.Context, c yodel.Caller, s *stream) error {
	for !s.stopped() {
		s.opens()
		for item, err := range Follow.Call(ctx, c, &Position{s.id, s.done}) {
			if err != nil {
				return err
			}
			s.confirm(item.Seq)
		}
	}
	return nil
}

// endregion follow

// region store

// store sends the items of a stream, on as many uploads as it takes.
func store(ctx context.Context, c yodel.Caller, s *stream) error {
	for s.await(s.done + 1) {
		s.opens()
		stored, err := Store.Call(ctx, c, func(send yodel.Send[Item]) error {
			for seq := s.done + 1; s.await(seq); seq++ {
				if err := send(&Item{s.id, seq}); err != nil {
					return err // io.EOF: the server takes no more
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.confirm(max(s.done, stored.Seq)) // a server that took nothing knows of nothing
	}
	return nil
}

// endregion store

// region process

// process sends the items of a stream and receives their acknowledgements, on as many streams as it
// takes.
func process(ctx context.Context, c yodel.Caller, s *stream) error {
	for s.await(s.done + 1) {
		s.opens()
		err := Process.Call(ctx, c, func(recv yodel.Recv[Position], send yodel.Send[Item]) error {
			for s.await(s.done + 1) {
				if err := processSome(recv, send, s); err != nil {
					return err // io.EOF: the server takes no more
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// processSome sends what there is, and waits until it is acknowledged.
func processSome(recv yodel.Recv[Position], send yodel.Send[Item], s *stream) error {
	last := s.made
	for seq := s.done + 1; seq <= last; seq++ {
		err := send(&Item{s.id, seq})
		if errors.Is(err, io.EOF) {
			break // acknowledgements may have come before the end
		}
		if err != nil {
			return err
		}
	}
	for s.done < last {
		ack, err := recv.Next()
		if err != nil {
			return err
		}
		s.confirm(ack.Seq)
	}
	return nil
}

// endregion process
