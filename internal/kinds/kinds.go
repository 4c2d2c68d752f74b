// SPDX-License-Identifier: Apache-2.0

// Package kinds names the kinds of methods that package wire numbers.
package kinds

import (
	"slices"

	"github.com/yodel-rpc/yodel/internal/wire"
)

var names = [...]string{wire.Unary: "unary", wire.Feed: "feed", wire.Upload: "upload", wire.Duplex: "duplex"}

// Name returns the name of a kind.
func Name(kind uint64) string {
	if kind < uint64(len(names)) {
		return names[kind]
	}
	return "unknown"
}

// Stream returns the kind with a name, if it is a kind of streams.
func Stream(name string) (kind uint64, ok bool) {
	i := slices.Index(names[:], name)
	return uint64(max(i, 0)), i > wire.Unary
}

// OneOf returns the name of a kind of methods with its article, for error messages.
func OneOf(kind uint64) string {
	switch kind {
	case wire.Unary:
		return "a unary method"
	case wire.Upload:
		return "an upload"
	}
	return "a " + Name(kind)
}
