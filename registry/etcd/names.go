// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// String names the store in errors.
func (s *store) String() string { return "etcd at " + s.endpoints }

// These constants limit the work of List.
const (
	listRounds = 20
	listKeys   = 200 // per request
)

// List implements registry.Lister. It reads keys only. After each request it skips the remaining
// keys of a folder.
func (s *store) List(ctx context.Context, prefix string) ([]string, error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	var names []string
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for range listRounds {
		found, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(listKeys))
		if err != nil {
			return nil, s.failed("list "+prefix, err)
		}
		for _, kv := range found.Kvs {
			name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.GetKey()), prefix), "/")
			if len(names) == 0 || names[len(names)-1] != name {
				names = append(names, name)
			}
		}
		if !found.More || len(names) == 0 {
			break
		}
		from = clientv3.GetPrefixRangeEnd(prefix + names[len(names)-1] + "/")
	}
	return names, nil
}
