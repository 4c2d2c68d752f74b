// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/yodel-rpc/yodel"
)

// region contract

const (
	// Watch answers a query with its prices, for as long as somebody wants them.
	Watch yodel.Feed[Query, Tick] = "Market.Watch"
	// Buy takes orders, and gives one receipt for all.
	Buy yodel.Upload[Order, Receipt] = "Market.Buy"
	// Ask answers each query with the price.
	Ask yodel.Duplex[Query, Tick] = "Market.Ask"
)

// endregion contract

// A Query asks for the price of a share.
type Query struct{ Symbol string }

// A Tick is the price of a share at a moment.
type Tick struct {
	Symbol string
	Price  int
}

// An Order is for a number of shares.
type Order struct {
	Symbol string
	Shares int
}

// A Receipt is for several orders.
type Receipt struct{ Orders, Shares int }

type market struct{ prices map[string]int }

func (m *market) register(s *yodel.Server) {
	Watch.Handle(s, m.watch)
	Buy.Handle(s, m.buy)
	Ask.Handle(s, m.ask)
}

// region handle

// watch sends a price every millisecond, until the caller has seen enough or the server shuts down.
func (m *market) watch(ctx context.Context, in *Query, send yodel.Send[Tick]) error {
	draining := yodel.CallFrom(ctx).Draining()
	for price := m.prices[in.Symbol]; ; price++ {
		if err := send(&Tick{in.Symbol, price}); err != nil {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-draining:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endregion handle

// buy takes all orders.
func (m *market) buy(_ context.Context, recv yodel.Recv[Order]) (*Receipt, error) {
	receipt := &Receipt{}
	for order, err := range recv {
		if err != nil {
			return nil, err // the caller has gone: what came may not be all
		}
		receipt.Orders++
		receipt.Shares += order.Shares
	}
	return receipt, nil
}

// ask answers one query after the other.
func (m *market) ask(_ context.Context, recv yodel.Recv[Query], send yodel.Send[Tick]) error {
	for query, err := range recv {
		if err != nil {
			return err
		}
		if err := send(&Tick{query.Symbol, m.prices[query.Symbol]}); err != nil {
			return err
		}
	}
	return nil
}
