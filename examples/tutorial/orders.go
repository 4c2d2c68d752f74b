// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/yodel-rpc/yodel"
)

// orders is the service shop.Orders. It calls shop.Prices with the client c.
func orders(s *yodel.Server, c *yodel.Client) {
	Place.Handle(s, func(ctx context.Context, in *Order) (*Amount, error) {
		if in.Count <= 0 {
			return nil, yodel.Errorf(yodel.InvalidArgument, "the count is %d", in.Count)
		}
		price, err := Price.Call(ctx, c, &Item{SKU: in.SKU}) // has the deadline of the order
		if errors.Is(err, yodel.NotFound) {
			return nil, yodel.Errorf(yodel.NotFound, "the shop does not sell %q", in.SKU)
		}
		if err != nil {
			return nil, err
		}
		return &Amount{Cents: price.Cents * in.Count}, nil
	})
}
