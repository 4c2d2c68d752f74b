// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/yodel-rpc/yodel"
)

// prices is the service shop.Prices.
func prices(s *yodel.Server) {
	cents := map[string]int{"tea": 350, "milk": 120}
	Price.Handle(s, func(_ context.Context, in *Item) (*Amount, error) {
		price, ok := cents[in.SKU]
		if !ok {
			return nil, yodel.Errorf(yodel.NotFound, "the shop does not sell %q", in.SKU)
		}
		return &Amount{Cents: price}, nil
	})
	s.MarkIdempotent(string(Price)) // a second execution changes nothing
}
