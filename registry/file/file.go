// SPDX-License-Identifier: Apache-2.0

// Package file is a registry in a folder that processes on one machine share. It also has a
// resolver for a list in a file that people edit.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/registry"
)

// New returns a registry whose records are files: FOLDER/PREFIX/SERVICE/ADDRESS. A record is valid
// until the modification time of its file, which is set to the end of its ttl. Clients list the
// files five times a second, and less often if there are thousands.
func New(folder string, o *registry.Options) *registry.Registry {
	prefix := "yodel" // the default of registry.New
	if o != nil && o.Prefix != "" {
		prefix = strings.TrimSuffix(o.Prefix, "/")
	}
	return registry.New(&store{folder, strings.Count(prefix, "/") + 3}, o)
}

// every is the pause between two looks at the files. If a look takes long, because there are
// thousands of files, the pause is longer, up to seldom.
const (
	every  = 200 * time.Millisecond
	seldom = 2 * time.Second
)

// grace is how long an expired file is kept: its server may be late, and about to renew it.
const grace = 10 * time.Second

// never is added to the time of writing for the modification time of a record without a ttl. Two
// writes do not have the same modification time, so that readers notice each write.
const never = 100 * 365 * 24 * time.Hour

// A store is a registry.Store in a folder.
type store struct {
	folder string
	parts  int // number of parts of a key: the prefix's parts, the service and the rest
}

// place returns the path of the file of a key. It fails if a part of the key is too long for the
// name of a file.
func (s *store) place(key string) (string, error) {
	parts := strings.SplitN(key, "/", s.parts)
	for i, part := range parts {
		parts[i] = escape(part)
		if size := len(parts[i]); size > maxName {
			plain, err := url.PathUnescape(part)
			if err != nil {
				plain = part
			}
			return "", registry.TooLong(s.String(), "name", plain, size, maxName, "bytes")
		}
	}
	return filepath.Join(append([]string{s.folder}, parts...)...), nil
}

// Put implements registry.Store.
func (s *store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	path, err := s.place(key)
	if err != nil {
		return err
	}
	end := time.Now().Add(ttl)
	if ttl == 0 {
		end = time.Now().Add(never)
	}
	old, err := os.ReadFile(path) //nolint:gosec // place escapes it
	if err == nil && bytes.Equal(old, value) {
		err = os.Chtimes(path, end, end)
		if !errors.Is(err, fs.ErrNotExist) { // a client may have removed the file meanwhile
			return err
		}
	}
	folder := filepath.Dir(path)
	if err = os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // for other users to read
		return err
	}
	f, err := os.CreateTemp(folder, ".*")
	if err != nil {
		return err
	}
	_, err = f.Write(value)
	if err = errors.Join(err, f.Chmod(0o644), f.Close(), os.Chtimes(f.Name(), end, end)); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Get implements registry.Store.
func (s *store) Get(ctx context.Context, key string) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	path, err := s.place(key)
	if err != nil {
		return nil, nil //nolint:nilerr // Put does not write such a key
	}
	value, err := os.ReadFile(path) //nolint:gosec // place escapes it
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return value, err
}

// Delete implements registry.Store.
func (s *store) Delete(ctx context.Context, key string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	path, err := s.place(key)
	if err != nil {
		return nil //nolint:nilerr // Put does not write such a key
	}
	if err = os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Watch implements registry.Store.
func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	folder, err := s.place(strings.TrimSuffix(prefix, "/"))
	if err != nil {
		return err
	}
	known := make(map[string]seen)
	for first := true; ctx.Err() == nil; first = false {
		began := time.Now()
		changed, err := s.look(folder, known)
		if err != nil {
			return err
		}
		if changed || first {
			all := make(map[string][]byte, len(known))
			for name, file := range known {
				all[prefix+file.name] = known[name].value
			}
			view.Replace(all)
		}
		select {
		case <-time.After(max(every, min(10*time.Since(began), seldom))):
		case <-ctx.Done():
		}
	}
	return nil
}

// seen is the state of a file when it was last read.
type seen struct {
	name  string // the last part of the key
	end   time.Time
	size  int64
	value []byte
}

// list returns the entries of the folder of a service. It returns no entries if the service has not
// been announced yet.
func (s *store) list(folder string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(folder)
	if !errors.Is(err, fs.ErrNotExist) {
		return entries, err
	}
	if _, err := os.Stat(s.folder); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist; a server makes the folder, if it is given the same path: %w", s.folder, fs.ErrNotExist)
	} else if err != nil {
		return nil, err
	}
	// The registry exists. Its folder may have been restored between the two calls, together with
	// the service's folder.
	if entries, err = os.ReadDir(folder); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// look updates known, the files of a folder, and reports whether a value has changed.
func (s *store) look(folder string, known map[string]seen) (changed bool, err error) {
	entries, err := s.list(folder)
	if err != nil {
		return false, err
	}
	now := time.Now()
	there, vanished := make(map[string]bool, len(entries)), false
	for _, entry := range entries {
		file := entry.Name()
		info, err := entry.Info()
		vanished = vanished || err != nil
		if err != nil || file[0] == '.' || !info.Mode().IsRegular() {
			continue // withdrawn meanwhile, incomplete, or not a record
		}
		end := info.ModTime()
		if end.Before(now) {
			if now.Sub(end) > grace {
				_ = os.Remove(filepath.Join(folder, file)) // another process may have removed it first
			}
			continue
		}
		old, ok := known[file]
		if !ok || !old.end.Equal(end) || old.size != info.Size() {
			value, err := os.ReadFile(filepath.Join(folder, file)) //nolint:gosec // it is what ReadDir found
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					vanished = true
					continue
				}
				return false, err
			}
			name, err := unescape(file)
			if err != nil {
				continue // not a record
			}
			changed = changed || !ok || !bytes.Equal(old.value, value)
			known[file] = seen{name, end, info.Size(), value}
		}
		there[file] = true
	}
	if vanished { // the folder may have been removed as well
		if _, err := os.Stat(folder); err != nil {
			return false, err
		}
	}
	for file := range known {
		if !there[file] {
			delete(known, file)
			changed = true
		}
	}
	return changed, nil
}
