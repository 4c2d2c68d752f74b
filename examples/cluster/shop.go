// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// The service: two methods, which the instances and the callers know by these names and types.
const (
	// Price only reads: executing it twice does no harm. newServer declares so.
	Price yodel.Method[Order, Receipt] = "Shop.Price"
	// Buy must not be executed twice.
	Buy yodel.Method[Order, Receipt] = "Shop.Buy"
)

// An Order has a number of its own, so that afterwards can be counted what happened to it.
type Order struct{ ID int }

// A Receipt says who has carried out which order.
type Receipt struct {
	ID       int
	Instance string
}

// announceEvery is how often an instance says that it is there. It is forgotten after three times
// as long.
const announceEvery = time.Second

// newServer returns a server of the shop, which announces itself to a registry. It records each
// order before it carries it out.
func newServer(name string, registry discovery.Registrar, record func(id int)) *yodel.Server {
	carryOut := func(ctx context.Context, order *Order) (*Receipt, error) {
		record(order.ID)
		select {
		case <-time.After(rand.N(50 * time.Millisecond)):
			return &Receipt{ID: order.ID, Instance: name}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{registry}, AnnounceEvery: announceEvery,
		Instance: discovery.Instance{Metadata: yodel.Metadata{"name": name}}, // for readers of the registry
	})
	Price.Handle(s, carryOut)
	Buy.Handle(s, carryOut)
	s.MarkIdempotent(string(Price))
	return s
}
