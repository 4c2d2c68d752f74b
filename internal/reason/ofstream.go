// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"context"
	"errors"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// OfStream returns the reason why a stream from a client at where ended with err, before the method
// of the server did. Ctx is the context of the method.
func OfStream(ctx context.Context, err error, where string) Reason {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Reason{ID: catalogue.NoReply, Text: "the deadline passed while the stream from " + where + " was open"}
	case errors.Is(err, mux.ErrCallerGone), errors.Is(err, context.Canceled):
		return Reason{ID: catalogue.CallCanceled, Text: "the caller at " + where + " canceled it"}
	}
	return Reason{ID: catalogue.ConnectionLost, Text: "the connection to " + where + " was lost: " + Plain(err)}
}
