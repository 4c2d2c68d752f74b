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

// listRounds limits how many keys List reads to listRounds times atOnce, because a database may
// hold more than a registry.
const listRounds = 10

// List implements registry.Lister.
func (s *store) List(ctx context.Context, prefix string) ([]string, error) {
	if s.rpcx {
		prefix = "/" + prefix
	}
	names := make(map[string]bool)
	cursor := uint64(0)
	for range listRounds {
		keys, next, err := s.client.Scan(ctx, cursor, literal(prefix)+"*", atOnce).Result()
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			name, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), "/")
			names[name] = true
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}
