// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"errors"
	"strings"

	"github.com/go-zookeeper/zk"
)

// String names the store in errors.
func (s *store) String() string { return "ZooKeeper at " + strings.Join(s.servers, ",") }

// List implements registry.Lister.
func (s *store) List(ctx context.Context, prefix string) ([]string, error) {
	node := strings.TrimSuffix(s.node(prefix), "/")
	found := make(chan []string, 1) // buffered: no goroutine receives the names after ctx has ended
	err := s.change(ctx, "list", node, func(_ context.Context, conn *zk.Conn, _ *record) error {
		names, _, err := conn.Children(node)
		if errors.Is(err, zk.ErrNoNode) {
			names, err = nil, nil
		}
		if err == nil {
			found <- names
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-found, nil
}
