// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// String names the store in errors.
func (s *store) String() string { return "etcd at " + s.endpoints }

// A request of List reads listKeys keys, or a listPart of all keys if that is more. For each
// request, etcd counts all keys up to the end of the range, so many requests would be slow.
const (
	listKeys = 1000
	listPart = 20
)

// List implements registry.Lister. It reads keys only. After each request it skips the remaining
// keys of a folder.
func (s *store) List(ctx context.Context, prefix string) (names []string, err error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for limit := int64(listKeys); ; {
		found, err := s.page(ctx, from, end, limit)
		if err != nil {
			return names, s.failed("list "+prefix, err)
		}
		for _, kv := range found.Kvs {
			key := string(kv.GetKey())
			name, _, folder := strings.Cut(strings.TrimPrefix(key, prefix), "/")
			if !folder {
				from = key + "\x00" // the next key
				continue
			}
			from = clientv3.GetPrefixRangeEnd(prefix + name + "/")
			if len(names) == 0 || names[len(names)-1] != name {
				names = append(names, name)
			}
		}
		if !found.More {
			return names, nil
		}
		limit = max(limit, found.Count/listPart)
	}
}

// page reads the first keys of a range.
func (s *store) page(ctx context.Context, from, end string, limit int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(limit))
}
