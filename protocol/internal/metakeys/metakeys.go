// SPDX-License-Identifier: Apache-2.0

// Package metakeys says which metadata keys with the prefix "yodel-" protocols keep for themselves.
package metakeys

import "strings"

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
