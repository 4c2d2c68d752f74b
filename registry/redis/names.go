// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// String names the store in errors.
func (s *store) String() string { return "Redis at " + s.client.Options().Addr }

// failed adds the server's address to an error, and a hint if the server may not be a Redis server.
func (s *store) failed(what string, err error) error {
	hint := ""
	if errors.Is(err, io.EOF) {
		hint = " (the server ended the connection without an answer: is it a Redis server?)"
	}
	return fmt.Errorf("redis at %s: %s: %w%s", s.client.Options().Addr, what, err, hint)
}

// List implements registry.Lister. Redis has no index of its keys, so List scans all keys of the
// database. It asks for the sets of services only, unless the layout is that of rpcx, which has no
// sets.
func (s *store) List(ctx context.Context, prefix string) ([]string, error) {
	kind := "zset"
	if s.rpcx {
		prefix, kind = "/"+prefix, "string"
	}
	names := make(map[string]bool)
	err := s.scan(ctx, prefix, kind, func(keys []string) {
		for _, key := range keys {
			name, _, folder := strings.Cut(strings.TrimPrefix(key, prefix), "/")
			if folder == s.rpcx {
				names[name] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(names)), err
}

// scan passes the keys of a type that begin with a prefix to found. A key may occur twice.
func (s *store) scan(ctx context.Context, prefix, kind string, found func(keys []string)) error {
	type page struct {
		keys []string
		next uint64
	}
	for cursor := uint64(0); ; {
		one, err := ask(ctx, s, "scan "+prefix, func(ctx context.Context) (one page, err error) {
			one.keys, one.next, err = s.client.ScanType(ctx, cursor, literal(prefix)+"*", atOnce, kind).Result()
			return one, err
		})
		if err != nil {
			return err
		}
		found(one.keys)
		if cursor = one.next; cursor == 0 { // Redis guarantees that the scan reaches 0
			return nil
		}
	}
}

// Writable implements the optional method of registry.Store.
func (s *store) Writable(ctx context.Context, key string) error {
	record, _ := s.place(key)
	_, err := ask(ctx, s, "write", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.client.SetXX(ctx, record, "", time.Second).Err() // the key does not exist
	})
	return err
}
