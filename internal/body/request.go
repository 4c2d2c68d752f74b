// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/unpack"
)

// A holder counts the memory of a request, and knows its deadline. It counts the memory for the
// request.
type holder interface {
	unpack.Account
	// Expired reports whether the deadline of the call has passed.
	Expired() bool
}

// OpenRequest decompresses a request into memory. The result stays counted in by. The error is
// a *fault.Fault. It waits for a processor until ctx ends.
func (f *Format[V, E]) OpenRequest(ctx context.Context, by holder, method string, into *[]byte, body []byte) error {
	opened, err := f.Pack.Unpack(ctx, by, (*into)[:0], body)
	switch {
	case err == nil:
		*into = opened
		return nil
	case err != ctx.Err(): //nolint:errorlint // it is returned bare
		return f.Torn(err, method, "the request", body)
	case by.Expired():
		return fault.Of(catalogue.DeadlinePassed, method, "the deadline passed before the server could decompress the request").NotProcessed()
	}
	return fault.Of(catalogue.CallCanceled, method, "the caller canceled it before the server could decompress the request").NotProcessed()
}
