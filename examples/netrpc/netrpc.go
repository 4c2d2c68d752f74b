// SPDX-License-Identifier: Apache-2.0

// Package netrpc is a service as it was written for net/rpc. The program in before serves and calls
// it with net/rpc, the one in after with yodel: the service itself stays as it is.
package netrpc

import "errors"

// Args is two numbers.
type Args struct{ A, B int }

// Quotient is the result of a division.
type Quotient struct{ Quo, Rem int }

// Arith calculates.
type Arith struct{}

// Mul multiplies.
func (*Arith) Mul(args Args, product *int) error {
	*product = args.A * args.B
	return nil
}

// Div divides.
func (*Arith) Div(args *Args, q *Quotient) error {
	if args.B == 0 {
		return errors.New("divide by zero")
	}
	q.Quo, q.Rem = args.A/args.B, args.A%args.B
	return nil
}
