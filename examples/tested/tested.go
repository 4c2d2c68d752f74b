// SPDX-License-Identifier: Apache-2.0

// Package tested is a small service and a client of it. Its tests show how to test either without a
// network.
package tested

import (
	"context"

	"github.com/yodel-rpc/yodel"
)

// Price returns the price of an item.
const Price yodel.Method[string, int] = "Shop.Price"

// A Shop is the service.
type Shop struct{ Prices map[string]int }

// Price returns the price of an item that the shop has.
func (s *Shop) Price(_ context.Context, item *string) (*int, error) {
	price, ok := s.Prices[*item]
	if !ok {
		return nil, yodel.Errorf(yodel.NotFound, "there is no %s", *item)
	}
	return &price, nil
}

// Total is what a client of the shop does: it adds up the prices of items. Items that the shop does
// not have cost nothing.
func Total(ctx context.Context, c yodel.Caller, items ...string) (int, error) {
	total := 0
	for _, item := range items {
		price, err := Price.Call(ctx, c, &item)
		switch {
		case err == nil:
			total += *price
		case yodel.CodeOf(err) != yodel.NotFound:
			return 0, err
		}
	}
	return total, nil
}
