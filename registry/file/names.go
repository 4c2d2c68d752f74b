// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"net/url"
	"os"
	"strings"
)

// String names the store in errors.
func (s *store) String() string { return "the folder " + s.folder }

// List implements registry.Lister.
func (s *store) List(_ context.Context, prefix string) ([]string, error) {
	entries, err := os.ReadDir(s.place(strings.TrimSuffix(prefix, "/")))
	var names []string
	for _, entry := range entries {
		if name, err := url.PathUnescape(entry.Name()); err == nil && entry.IsDir() {
			names = append(names, name)
		}
	}
	return names, err
}

// String names the resolver in errors.
func (l list) String() string { return "the file " + string(l) }
