// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
)

// String names the store in errors.
func (s *store) String() string { return "the folder " + s.folder }

// List implements registry.Lister.
func (s *store) List(_ context.Context, prefix string) ([]string, error) {
	folder, err := s.place(strings.TrimSuffix(prefix, "/"))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(folder)
	var names []string
	for _, entry := range entries {
		if name, err := unescape(entry.Name()); err == nil && entry.IsDir() {
			names = append(names, name)
		}
	}
	return names, err
}

// String names the resolver in errors.
func (l list) String() string { return "the file " + string(l) }

// Writable implements the optional method of registry.Store. A folder that does not exist yet is
// made by the first server.
func (s *store) Writable(_ context.Context, _ string) error {
	f, err := os.CreateTemp(s.folder, ".*")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
