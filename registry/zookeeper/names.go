// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"
)

// String names the store in errors.
func (s *store) String() string { return "ZooKeeper at " + strings.Join(s.servers, ",") }

// List implements registry.Lister. The library does not support contexts: if ctx ends, List ends
// the session.
func (s *store) List(ctx context.Context, prefix string) ([]string, error) {
	fail := func(err error) error {
		return fmt.Errorf("zookeeper at %q: list %s: %w", strings.Join(s.servers, ","), prefix, err)
	}
	x, err := s.begin(func(zk.Event) {})
	if err != nil {
		return nil, fail(err)
	}
	defer s.end(x)
	stop := context.AfterFunc(ctx, func() { s.end(x) })
	defer stop()
	if err = x.authenticate(s.opts.Username, s.opts.Password); err != nil {
		return nil, fail(err)
	}
	names, _, err := x.conn.Children("/" + strings.Trim(prefix, "/"))
	switch {
	case ctx.Err() != nil:
		return nil, fail(context.Cause(ctx))
	case errors.Is(err, zk.ErrNoNode): // nothing was announced yet
		return nil, nil
	case err != nil:
		return nil, fail(err)
	}
	slices.Sort(names)
	return names, nil
}
