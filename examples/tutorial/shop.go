// SPDX-License-Identifier: Apache-2.0

// Command tutorial is the program of docs/tutorial.md: two services, of which one calls the other.
// Its argument is the service to run.
package main

import "github.com/yodel-rpc/yodel"

// region contract

// Price returns the price of an item in cents. Place places an order and returns what it costs.
const (
	Price yodel.Method[Item, Amount]  = "shop.Prices.Price"
	Place yodel.Method[Order, Amount] = "shop.Orders.Place"
)

// Item is what the shop sells.
type Item struct {
	SKU string `json:"sku"`
}

// Order is a number of items of one kind.
type Order struct {
	SKU   string `json:"sku"`
	Count int    `json:"count"`
}

// Amount is an amount of money.
type Amount struct {
	Cents int `json:"cents"`
}

// endregion contract
