// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// String names the store in errors.
func (s *store) String() string { return "this process's memory" }

// List implements registry.Lister.
func (s *store) List(_ context.Context, prefix string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make(map[string]bool)
	for key := range s.values {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			name, _, _ := strings.Cut(rest, "/")
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}
