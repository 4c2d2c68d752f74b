// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"cmp"
	"context"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/callfields"
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
	e, _ := callfields.ReadError(text, codeOf(text), metadata)
	e.NotProcessed = metadata[rpcxwire.KeyNotProcessed] == "1"
	e.Message = cmp.Or(e.Message, "the server answered with an error without a text")
	return e
}
