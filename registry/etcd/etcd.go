// SPDX-License-Identifier: Apache-2.0

// Package etcd is a registry in etcd, version 3.
package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	registry.Options
	// Username and Password are for etcd's authentication. Default none.
	Username, Password string
	// TLS is how to connect. Default: without TLS.
	TLS *tls.Config
	// Timeout is how long etcd may take to answer. Default 5 s.
	Timeout time.Duration
}

// A Registry is a registry in etcd. Each record has a lease of its own.
type Registry struct {
	*registry.Registry
	store *store
}

// New returns a registry in the etcd cluster with these endpoints, separated by commas. It does not wait for a connection, and connects
// again whenever it was lost.
func New(endpoints string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	s := &store{leases: make(map[string]clientv3.LeaseID), timeout: o.Timeout}
	if s.timeout <= 0 {
		s.timeout = 5 * time.Second
	}
	s.client, s.err = clientv3.New(clientv3.Config{
		Endpoints: strings.Split(endpoints, ","), Username: o.Username, Password: o.Password, TLS: o.TLS, DialTimeout: s.timeout,
		DialKeepAliveTime: s.timeout, DialKeepAliveTimeout: s.timeout,
	})
	return &Registry{registry.New(s, &o.Options), s}
}

// Close closes the connections to etcd. What was announced stays until its leases end.
func (r *Registry) Close() error {
	if r.store.err != nil {
		return r.store.err
	}
	return r.store.client.Close()
}

// A store is a registry.Store.
type store struct {
	client  *clientv3.Client
	err     error // why there is no client
	timeout time.Duration

	mu     sync.Mutex
	leases map[string]clientv3.LeaseID // of keys that were put
}

// Put keeps the lease of the key alive, and writes the record again unless it stands there with that lease.
func (s *store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if s.err != nil {
		return s.err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	lease, err := s.lease(ctx, key, ttl)
	if err != nil {
		return fmt.Errorf("etcd: lease: %w", err)
	}
	same := []clientv3.Cmp{
		clientv3.Compare(clientv3.Value(key), "=", string(value)),
		clientv3.Compare(clientv3.LeaseValue(key), "=", lease),
	}
	if _, err = s.client.Txn(ctx).If(same...).Else(clientv3.OpPut(key, string(value), clientv3.WithLease(lease))).Commit(); err != nil {
		return fmt.Errorf("etcd: put %s: %w", key, err)
	}
	return nil
}

// lease returns the lease of a key, which has ttl to go.
func (s *store) lease(ctx context.Context, key string, ttl time.Duration) (clientv3.LeaseID, error) {
	seconds := int64(math.Ceil(ttl.Seconds())) // its unit
	s.mu.Lock()
	id, ok := s.leases[key]
	s.mu.Unlock()
	if ok {
		alive, err := s.client.KeepAliveOnce(ctx, id)
		if err == nil && alive.TTL == seconds {
			return id, nil
		}
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return 0, err
		}
	}
	granted, err := s.client.Grant(ctx, seconds)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[key] = granted.ID
	return granted.ID, nil
}

func (s *store) Delete(ctx context.Context, key string) error {
	if s.err != nil {
		return s.err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	s.mu.Lock()
	id, ok := s.leases[key]
	delete(s.leases, key)
	s.mu.Unlock()
	_, err := s.client.Delete(ctx, key)
	if err != nil {
		return fmt.Errorf("etcd: delete %s: %w", key, err)
	}
	if ok {
		_, _ = s.client.Revoke(ctx, id) // it would end by itself
	}
	return nil
}

func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	if s.err != nil {
		return s.err
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx)) // a member that is cut off says so
	defer cancel()
	all, err := s.list(ctx, prefix)
	if err != nil {
		return fmt.Errorf("etcd: get %s: %w", prefix, err)
	}
	values := make(map[string][]byte, len(all.Kvs))
	for _, kv := range all.Kvs {
		values[string(kv.Key)] = kv.Value
	}
	view.Replace(values)
	for changes := range s.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(all.Header.Revision+1)) {
		if err := changes.Err(); err != nil {
			return fmt.Errorf("etcd: watch %s: %w", prefix, err)
		}
		for _, e := range changes.Events {
			if e.Type == clientv3.EventTypeDelete {
				view.Delete(string(e.Kv.Key))
			} else {
				view.Put(string(e.Kv.Key), bytes.Clone(e.Kv.Value))
			}
		}
	}
	return ctx.Err()
}

func (s *store) list(ctx context.Context, prefix string) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.client.Get(ctx, prefix, clientv3.WithPrefix())
}
