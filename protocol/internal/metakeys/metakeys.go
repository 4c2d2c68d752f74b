// SPDX-License-Identifier: Apache-2.0

// Package metakeys decides what becomes of metadata that a protocol cannot carry. A reply is sent
// without it, because the method was executed, and the server counts and logs that. A request is
// refused before it is sent.
package metakeys

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// Reserved reports whether a key has the prefix of the keys under which the fields of a call and of
// an error travel. The keys that middleware of this repository sets for callers and servers travel
// as all metadata does.
func Reserved(key string) bool {
	switch key {
	case "yodel-fallback", "yodel-stale", "yodel-mirror":
		return false
	}
	return strings.HasPrefix(key, "yodel-")
}

// Refused returns the error of a call whose metadata has a key that a Wire cannot carry.
func Refused(method, key, why string) *yodel.Error {
	return &yodel.Error{
		Code: yodel.InvalidArgument, ID: "YDL2103", NotProcessed: true,
		Message: fmt.Sprintf("%s: the metadata %.40q cannot be sent: %s", method, key, why),
	}
}

// LeaveOut leaves out all metadata of a reply, in a protocol that has none.
func LeaveOut(v *yodel.Served, why string) {
	call := v.Call()
	if call.OneWay { // there is no reply
		return
	}
	for _, md := range []yodel.Metadata{call.Header(), call.Trailer} {
		for key := range md {
			v.LeftOut(key, why)
		}
	}
}

// Within returns the pairs of md that are within the limits of a server. It leaves out the others,
// in the order of their keys.
func Within(v *yodel.Served, md yodel.Metadata, limits yodel.Limits) yodel.Metadata {
	size := 0
	for key, value := range md {
		size += len(key) + len(value)
	}
	if size <= limits.MaxMetadata && len(md) <= limits.MaxPairs {
		return md
	}
	size = 0
	within := make(yodel.Metadata)
	for _, key := range slices.Sorted(maps.Keys(md)) {
		n := size + len(key) + len(md[key])
		switch {
		case n > limits.MaxMetadata:
			v.LeftOut(key, fmt.Sprintf("with it, the metadata has %d bytes, the limit is %d", n, limits.MaxMetadata))
		case len(within) >= limits.MaxPairs:
			v.LeftOut(key, fmt.Sprintf("the metadata has %d pairs, the limit is %d", len(md), limits.MaxPairs))
		default:
			within[key], size = md[key], n
		}
	}
	return within
}

// Pairs returns the metadata of a reply in a protocol that has one kind of it: the header and the
// trailer, in the order of their keys. Obstacle returns why the protocol cannot carry a pair, or
// "".
func Pairs(v *yodel.Served, limits yodel.Limits, obstacle func(key, value string) string) (pairs [][2]string) {
	call := v.Call()
	header, trailer := call.Header(), call.Trailer
	if len(header) == 0 && len(trailer) == 0 {
		return nil
	}
	all := make(yodel.Metadata, len(header)+len(trailer))
	for key, value := range header {
		if last, is := trailer[key]; is && last != value {
			v.LeftOut(key, "the trailer has the key too, and the protocol does not have both")
		}
		all[key] = value
	}
	maps.Copy(all, trailer)
	for key, value := range all {
		if why := obstacle(key, value); why != "" {
			v.LeftOut(key, why)
			delete(all, key)
		}
	}
	all = Within(v, all, limits)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		pairs = append(pairs, [2]string{key, all[key]})
	}
	return pairs
}
