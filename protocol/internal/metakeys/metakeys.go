// SPDX-License-Identifier: Apache-2.0

// Package metakeys says which metadata keys with the prefix "yodel-" protocols keep for themselves,
// and finds keys that callers write in another case.
package metakeys

import "strings"

// Find returns the value of a key whose name has a meaning over HTTP too. Over HTTP, case does not
// matter, so a caller may write Idempotency-Key. The key as it is goes first. Other spellings of it
// remain metadata.
func Find(md map[string]string, key string) string {
	value, exact := md[key]
	if exact {
		return value
	}
	found := ""
	for other, its := range md {
		if len(other) == len(key) && (found == "" || other < found) && strings.EqualFold(other, key) {
			found, value = other, its
		}
	}
	return value
}

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
