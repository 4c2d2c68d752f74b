// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// A brokenError panics when it is asked what it says.
type brokenError struct{ text *string }

func (e brokenError) Error() string { return *e.text }

func TestBrokenErrorsOfHandlersStayInTheirCall(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Nil", func(context.Context, *Empty) (*Empty, error) {
		var none *yodel.Error
		return nil, none
	})
	handle(t, s, "Panics", func(context.Context, *Empty) (*Empty, error) { return nil, brokenError{} })
	c := connect(t, s, nil)
	if err := c.Call(t.Context(), "Nil", &Empty{}, nil); yodel.CodeOf(err) != yodel.Internal {
		t.Errorf("a nil *Error: got %v, want internal", err)
	}
	wantError(t, c.Call(t.Context(), "Panics", &Empty{}, nil), yodel.Internal, "YDL5001")
	if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
		t.Errorf("a call afterwards: %v", err)
	}
}
