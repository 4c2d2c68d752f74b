// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"iter"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/callfields"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// all returns the pairs of the metadata. frameReader has checked them.
func (h *head) all() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for rest := h.metadata; rest != ""; {
			key, value, next, err := cutPair(rest)
			if rest = next; err != nil || !yield(key, value) {
				return
			}
		}
	}
}

// requestMetadata returns the encoded metadata of a request. It fails if the caller has set a
// reserved key, or if the result exceeds the limits.
func requestMetadata(ctx context.Context, call *yodel.Call, limits yodel.Limits) (string, *yodel.Error) {
	pairs, e := callfields.Request(ctx, call, rpcxwire.Fields, nil, rpcxwire.Obstacle)
	if e != nil {
		return "", e
	}
	var b []byte
	for _, pair := range pairs {
		if pair[0] == rpcxwire.Authorization {
			pair[0] = rpcxwire.KeyAuth
		}
		b = appendPair(b, pair[0], pair[1])
	}
	if len(b) > limits.MaxMetadata || len(pairs) > limits.MaxPairs {
		return "", linkerror.LargeMetadata(call, len(b), len(pairs), limits)
	}
	return string(b), nil
}

// errorMetadata appends the metadata of an error. The text alone says all of an error that has only
// a text, and of those for which rpcx has a text of its own.
func errorMetadata(b []byte, text string, e *yodel.Error) []byte {
	b = appendPair(b, rpcxwire.KeyError, text)
	if _, ok := rpcxwire.Parse(text); ok {
		return b
	}
	for _, pair := range callfields.ErrorPairs(e) {
		b = appendPair(b, pair[0], pair[1])
	}
	if e.NotProcessed {
		b = appendPair(b, rpcxwire.KeyNotProcessed, "1")
	}
	return b
}
