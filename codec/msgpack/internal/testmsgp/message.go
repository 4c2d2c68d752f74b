// SPDX-License-Identifier: Apache-2.0

// Package testmsgp has messages with the methods that msgp generates, and tests the codec with
// them. It is a module of its own, so that users of the codec do not require msgp.
//
// The methods were generated with msgp v1.6.5, by: msgp -file message.go -io=false -tests=false
package testmsgp

import "time"

// Order has a field of every kind that matters.
type Order struct {
	ID     int64             `msg:"id"`
	Name   string            `msg:"name"`
	Price  float64           `msg:"price"`
	Paid   bool              `msg:"paid"`
	Raw    []byte            `msg:"raw"`
	Lines  []Line            `msg:"lines"`
	Labels map[string]string `msg:"labels"`
	Size   [3]uint32         `msg:"size"`
	When   time.Time         `msg:"when"`
	Parent *Order            `msg:"parent"`
	Extra  any               `msg:"extra"`
}

// Line is a part of an Order.
type Line struct { //nolint:recvcheck // as msgp generates the methods
	Text  string `msg:"text"`
	Count int    `msg:"count"`
}

// Names is not a struct.
type Names []string //nolint:recvcheck // as above
