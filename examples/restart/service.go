// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/yodel-rpc/yodel"
)

// The service: a method of each kind.
const (
	// Work carries out a job.
	Work yodel.Method[Job, Done] = "Restart.Work"
	// Follow sends the items of a stream behind a position.
	Follow yodel.Feed[Position, Item] = "Restart.Follow"
	// Store takes items. In the end it says up to which one it has stored them.
	Store yodel.Upload[Item, Position] = "Restart.Store"
	// Process takes items, and acknowledges each one.
	Process yodel.Duplex[Item, Position] = "Restart.Process"
)

// A Job has a number of its own, so that afterwards can be counted how often it was carried out.
type Job struct{ ID int }

// Done says which job was carried out.
type Done struct{ ID int }

// An Item is a message of a stream. The items of a stream are numbered from 1.
type Item struct{ Stream, Seq int }

// A Position is a place in a stream: behind the item of this number.
type Position struct{ Stream, Seq int }

// A handler carries the service out. It records each job and each item.
type handler struct {
	record func(what string, numbers ...int)
}

func newServer(h *handler) *yodel.Server {
	s := yodel.NewServer(nil)
	Work.Handle(s, h.work)
	Follow.Handle(s, h.follow)
	Store.Handle(s, h.store)
	Process.Handle(s, h.process)
	return s
}

func (h *handler) work(ctx context.Context, job *Job) (*Done, error) {
	h.record("job", job.ID)
	return &Done{job.ID}, toil(ctx, 50*time.Millisecond)
}

// region feed

// follow sends items until the server drains. What it has sent by then arrives, and the caller goes
// on from there.
func (h *handler) follow(ctx context.Context, after *Position, send yodel.Send[Item]) error {
	draining := yodel.CallFrom(ctx).Draining()
	for seq := after.Seq + 1; ; seq++ {
		select {
		case <-draining:
			return nil
		default:
		}
		item := &Item{after.Stream, seq}
		if err := h.deal(ctx, item); err != nil {
			return err
		}
		if err := send(item); err != nil {
			return err
		}
	}
}

// endregion feed

// region upload

// store stores items until there are no more, or the server drains. Then it says how far it has
// come: the caller sends the rest to another server.
func (h *handler) store(ctx context.Context, recv yodel.Recv[Item]) (*Position, error) {
	stored := new(Position)
	for item, err := range untilDrain(ctx, recv) {
		if err == nil {
			err = h.deal(ctx, item)
		}
		if err != nil {
			return nil, err
		}
		*stored = Position(*item)
	}
	return stored, nil
}

// endregion upload

// region duplex

// process deals with items until there are no more, or the server drains. It acknowledges each one.
func (h *handler) process(ctx context.Context, recv yodel.Recv[Item], send yodel.Send[Position]) error {
	for item, err := range untilDrain(ctx, recv) {
		if err == nil {
			err = h.deal(ctx, item)
		}
		if err != nil {
			return err
		}
		done := Position(*item)
		if err := send(&done); err != nil {
			return err
		}
	}
	return nil
}

// endregion duplex

// deal deals with an item, which takes a while.
func (h *handler) deal(ctx context.Context, item *Item) error {
	if err := toil(ctx, 4*time.Millisecond); err != nil {
		return err
	}
	h.record("item", item.Stream, item.Seq)
	return nil
}

// toil takes a while.
func toil(ctx context.Context, longest time.Duration) error {
	select {
	case <-time.After(rand.N(longest)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
