// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// The texts by which rpcx says that it cannot begin a call. Callers compare them.
const (
	noService = "rpcx: can't find service "
	noMethod  = "rpcx: can't find method "
	noCodec   = "can not find codec for "
)

// textOf returns the text of the error of a call for a client. For errors that rpcx knows, it is
// the text of rpcx.
func (c *conn) textOf(h *head, v *yodel.Served, e *yodel.Error) string {
	if e.Code == yodel.Unimplemented && e.NotProcessed {
		switch {
		case v.Kind() == "" && c.session.HasService(h.path):
			return noMethod + h.method
		case v.Kind() == "":
			return noService + h.path
		case v.Call().Codec == nil:
			return noCodec + strconv.Itoa(int(h.serialize))
		}
	}
	return textOf(e)
}

// textOf returns the text of an error for a client. For a handler's error without a code it is the
// unchanged text. For any other error, it is the code, the text and the ID.
func textOf(e *yodel.Error) string {
	if e.Code == yodel.Unknown && e.ID == "" {
		return cmp.Or(e.Message, e.Code.String())
	}
	text := e.Code.String() + ": " + e.Message
	if e.ID != "" {
		text += " [" + e.ID + "]"
	}
	return text
}

// textErrors returns the error for a text of rpcx by which a server says that it cannot begin a
// call. It reports false for any other text.
func textErrors(text string) (*yodel.Error, bool) {
	for _, known := range []struct{ prefix, id string }{{noService, "YDL2001"}, {noMethod, "YDL2002"}, {noCodec, "YDL2003"}} {
		if strings.HasPrefix(text, known.prefix) {
			return &yodel.Error{Code: yodel.Unimplemented, ID: known.id, Message: text, NotProcessed: true}, true
		}
	}
	return nil, false
}

// codeOf returns the code of an error of which a server sent only the text.
func codeOf(text string) yodel.Code {
	switch text {
	case context.DeadlineExceeded.Error():
		return yodel.DeadlineExceeded
	case context.Canceled.Error():
		return yodel.Canceled
	}
	return yodel.Unknown
}

// errorOf returns the error that a server sent with the metadata of its answer.
func errorOf(metadata map[string]string) *yodel.Error {
	text := metadata[keyError]
	if e, ok := textErrors(text); ok {
		return e
	}
	e := &yodel.Error{Code: codeOf(text), ID: metadata[keyErrorID], NotProcessed: metadata[keyNotProcessed] == "1"}
	if name := metadata[keyErrorCode]; name != "" {
		if err := e.Code.UnmarshalText([]byte(name)); err != nil || e.Code == 0 {
			e.Code = yodel.Unknown
		}
		text = strings.TrimPrefix(text, name+": ")
	}
	if e.ID != "" {
		text = strings.TrimSuffix(text, fmt.Sprintf(" [%s]", e.ID))
	}
	if ms, err := strconv.ParseUint(metadata[keyRetryAfter], 10, 63); err == nil && ms < math.MaxInt64/uint64(time.Millisecond) {
		e.RetryAfter = time.Duration(ms) * time.Millisecond
	}
	e.Message = cmp.Or(text, "the server answered with an error without a text")
	return e
}
