// SPDX-License-Identifier: Apache-2.0

package reason_test

import (
	"context"
	"io"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
)

func TestWhyAStreamEndedBeforeItsMethod(t *testing.T) {
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	<-late.Done()
	for _, test := range []struct {
		ctx  context.Context
		err  error
		want string // the ID and the text
	}{
		{late, io.EOF, "YDL1004 the deadline passed while the stream from there was open"},
		{t.Context(), mux.ErrCallerGone, "YDL1006 the caller at there canceled it"},
		{t.Context(), context.Canceled, "YDL1006 the caller at there canceled it"},
		{t.Context(), &mux.IOError{Op: mux.EndOfStream, Err: io.EOF}, "YDL1104 the connection to there was lost: the peer closed the connection"},
	} {
		r := reason.OfStream(test.ctx, test.err, "there")
		if got := r.ID + " " + r.Text; got != test.want {
			t.Errorf("%v: got %q, want %q", test.err, got, test.want)
		}
	}
}
