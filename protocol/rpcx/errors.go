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
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

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
	text := metadata[rpcxwire.KeyError]
	if e, ok := rpcxwire.Parse(text); ok {
		return e
	}
	e := &yodel.Error{Code: codeOf(text), ID: metadata[rpcxwire.KeyErrorID], NotProcessed: metadata[rpcxwire.KeyNotProcessed] == "1"}
	if name := metadata[rpcxwire.KeyErrorCode]; name != "" {
		if err := e.Code.UnmarshalText([]byte(name)); err != nil || e.Code == 0 {
			e.Code = yodel.Unknown
		}
		text = strings.TrimPrefix(text, name+": ")
	}
	if e.ID != "" {
		text = strings.TrimSuffix(text, fmt.Sprintf(" [%s]", e.ID))
	}
	if ms, err := strconv.ParseUint(metadata[rpcxwire.KeyRetryAfter], 10, 63); err == nil && ms < math.MaxInt64/uint64(time.Millisecond) {
		e.RetryAfter = time.Duration(ms) * time.Millisecond
	}
	e.Message = cmp.Or(text, "the server answered with an error without a text")
	return e
}
