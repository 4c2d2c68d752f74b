// SPDX-License-Identifier: Apache-2.0

// Package metadata encodes and decodes the metadata of calls and connections, within limits. It
// remembers metadata that many calls have in common.
package metadata

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// Limits limits the metadata of one request, reply or connection.
type Limits struct {
	Bytes int // encoded
	Pairs int
}

// An ExcessError says that metadata exceeds a limit.
type ExcessError string

func (e ExcessError) Error() string { return string(e) }

// Excess returns the text of err if err is an ExcessError, and "" otherwise.
func Excess(err error) string {
	e, _ := err.(ExcessError) //nolint:errorlint // it is returned bare
	return string(e)
}

// Check returns nil if metadata with so many pairs and bytes is within the limits, and an
// ExcessError otherwise.
func (l Limits) Check(pairs, bytes int) error {
	switch {
	case bytes > l.Bytes:
		return ExcessError(fmt.Sprintf("has %d bytes, the limit is %d", bytes, l.Bytes))
	case pairs > l.Pairs:
		return ExcessError(fmt.Sprintf("has more than %d pairs, which is the limit", l.Pairs))
	}
	return nil
}

// Parse makes a map of metadata that a peer has sent. It checks the limits before it allocates.
func (l Limits) Parse(b []byte) (map[string]string, error) {
	if len(b) == 0 {
		return nil, nil //nolint:nilnil // no metadata is a valid value
	}
	n, err := wire.CountPairs(b, l.Pairs)
	if err == nil {
		err = l.Check(n, len(b))
	}
	if err != nil {
		return nil, err
	}
	md := make(map[string]string, n)
	var all strings.Builder // the keys and values, in one allocation
	all.Grow(len(b))
	err = wire.EachPair(b, func(key, value []byte) {
		from := all.Len()
		all.Write(key)
		to := all.Len()
		all.Write(value)
		md[all.String()[from:to]] = all.String()[to:]
	})
	return md, err
}

// Cost returns about how many bytes a map of metadata takes.
func (l Limits) Cost(b []byte) int {
	const entry = 96                    // of a map of strings
	n, _ := wire.CountPairs(b, l.Pairs) // of malformed metadata, only the valid beginning counts
	return len(b) + n*entry
}

// Append appends the encoding of md to dst.
func Append(dst []byte, md map[string]string) []byte {
	for key, value := range md {
		dst = wire.AppendPair(dst, key, value)
	}
	return dst
}

// Encode encodes the pairs of md in the order of their keys. It leaves out a pair that exceeds the
// limits, and calls leave with the key of the pair and the reason.
func (l Limits) Encode(md map[string]string, leave func(key, why string)) []byte {
	if md == nil {
		return nil
	}
	b := Append(nil, md)
	if l.Check(len(md), len(b)) == nil {
		return b
	}
	b = b[:0]
	pairs := 0
	for _, key := range slices.Sorted(maps.Keys(md)) {
		longer := wire.AppendPair(b, key, md[key])
		if err := l.Check(pairs+1, len(longer)); err != nil {
			leave(key, "with it, the metadata "+err.Error())
			continue
		}
		b, pairs = longer, pairs+1
	}
	return b
}
