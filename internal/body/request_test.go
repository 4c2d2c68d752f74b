// SPDX-License-Identifier: Apache-2.0

package body_test

import (
	"context"
	"testing"
)

// impatient ends its call while it decompresses.
type impatient struct {
	twice
	end context.CancelFunc
	ctx context.Context // its error is that of a wait for a processor
}

func (c impatient) Decompress(_, _ []byte, _ int) ([]byte, error) {
	c.end()
	return nil, c.ctx.Err()
}

// A call is the account of a request, and has a deadline.
type call struct {
	account
	expired bool
}

func (c *call) Expired() bool { return c.expired }

func TestRequestsAreDecompressed(t *testing.T) {
	f, c := packing(server, 1), &call{account: account{4096}}
	opened := make([]byte, 0, 6)
	memory := memoryOf(opened)
	if err := f.OpenRequest(t.Context(), c, "A.B", &opened, []byte("2abc")); err != nil || string(opened) != "abcabc" || memoryOf(opened) != memory || c.room != 4090 {
		t.Errorf("got %q, %v, %d bytes left", opened, err, c.room)
	}
	kept := opened
	c.room = 4096
	want(t, f.OpenRequest(t.Context(), c, "A.B", &kept, nil), "YDL2101", "the request cannot be decompressed: it is empty (twice)", true)
	for expired, test := range map[bool]struct{ id, text string }{
		false: {"YDL1006", "the caller canceled it before the server could decompress the request"},
		true:  {"YDL1005", "the deadline passed before the server could decompress the request"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		f.Pack.Compressor = impatient{end: cancel, ctx: ctx}
		want(t, f.OpenRequest(ctx, &call{account{4096}, expired}, "A.B", &kept, []byte("2abc")), test.id, test.text, true)
	}
	if string(kept) != "abcabc" {
		t.Errorf("a request that failed has left %q", kept)
	}
}
