// SPDX-License-Identifier: Apache-2.0

// Package etcd is a registry in etcd, version 3.
//
//	r := etcd.New("10.0.0.1:2379,10.0.0.2:2379", nil)
//	defer r.Close()
//	server := yodel.NewServer(&yodel.ServerOptions{Registrars: []yodel.Registrar{r}})
//	client := yodel.NewClient(r.Service("Shop"), nil)
//
// Each record has a lease of its own, which ends when the server that announced it is gone. etcd
// counts leases in whole seconds, and gives none shorter than one and a half of its election
// timeouts.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

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

// A Registry is a registry in etcd.
type Registry struct {
	*registry.Registry
	store *store
}

// New returns a registry in the etcd cluster with these endpoints, separated by commas. It does not
// wait for a connection, and connects again whenever it was lost.
func New(endpoints string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	s := &store{
		endpoints: endpoints, timeout: o.Timeout, turn: make(chan struct{}, 1), leases: make(map[string]lease),
		renewals: make(chan renewal, idleRenewals),
	}
	if s.timeout <= 0 {
		s.timeout = 5 * time.Second
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.config = clientv3.Config{
		Endpoints: strings.Split(endpoints, ","), Username: o.Username, Password: o.Password, TLS: o.TLS,
		DialKeepAliveTime: s.timeout, DialKeepAliveTimeout: s.timeout,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			// By default gRPC waits up to two minutes: servers that are back would not be known for
			// as long.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second / 2},
			MinConnectTimeout: s.timeout,
		})},
		Logger: zap.NewNop(), // what goes wrong is the error of a call
	}
	return &Registry{registry.New(s, &o.Options), s}
}

// Close closes the connections to etcd. What was announced stays until its leases end.
func (r *Registry) Close() error {
	s := r.store
	s.end()
	s.turn <- struct{}{} // whoever has it, ends now
	defer func() { <-s.turn }()
	if s.client == nil {
		return nil
	}
	return s.client.Close()
}

// A store is a registry.Store.
type store struct {
	endpoints string
	config    clientv3.Config
	timeout   time.Duration
	life      context.Context //nolint:containedctx // ends with Close
	end       context.CancelFunc

	turn   chan struct{}    // capacity 1: the right to make the client
	client *clientv3.Client // nil before open has succeeded

	renewals chan renewal // that nobody uses

	mu     sync.Mutex
	leases map[string]lease // of keys that were put
}

// open makes the client, if there is none. With a password the library waits for an answer
// meanwhile, and fails for good without one: so it is tried again each time.
func (s *store) open(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.client != nil {
		return nil
	}
	if s.life.Err() != nil {
		return errClosed
	}
	life, cancel := context.WithCancel(s.life)
	stop := context.AfterFunc(ctx, cancel)
	config := s.config
	config.Context = life
	client, err := clientv3.New(config)
	if !stop() && err == nil { // the time was up, and the client has ended with it
		err = errors.Join(context.Cause(ctx), client.Close())
	}
	if err != nil {
		cancel()
		return fmt.Errorf("etcd at %q: log in: %w", s.endpoints, err)
	}
	s.client = client
	return nil
}

// failed says where, too, and what became of the connection: without one, the library knows only
// that the time is up.
func (s *store) failed(what string, err error) error {
	return fmt.Errorf("etcd at %q (connection: %s): %s: %w", s.endpoints, strings.ToLower(s.client.ActiveConnection().GetState().String()), what, err)
}

// Put keeps the lease of the key alive, and writes the record again unless it stands there with
// that lease.
func (s *store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return err
	}
	if ttl == 0 {
		if _, err := s.client.Put(ctx, key, string(value)); err != nil {
			return s.failed("put "+key, err)
		}
		return nil
	}
	id, err := s.lease(ctx, key, ttl)
	if err != nil {
		return s.failed("lease", err)
	}
	same := []clientv3.Cmp{
		clientv3.Compare(clientv3.Value(key), "=", string(value)),
		clientv3.Compare(clientv3.LeaseValue(key), "=", id),
	}
	if _, err = s.client.Txn(ctx).If(same...).Else(clientv3.OpPut(key, string(value), clientv3.WithLease(id))).Commit(); err != nil {
		return s.failed("put "+key, err)
	}
	return nil
}

// Get implements registry.Store.
func (s *store) Get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	found, err := s.client.Get(ctx, key)
	if err != nil {
		return nil, s.failed("get "+key, err)
	}
	if len(found.Kvs) == 0 {
		return nil, nil
	}
	return found.Kvs[0].GetValue(), nil
}

// Delete implements registry.Store.
func (s *store) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	old, ok := s.leases[key]
	delete(s.leases, key)
	s.mu.Unlock()
	if _, err := s.client.Delete(ctx, key); err != nil {
		return s.failed("delete "+key, err)
	}
	if ok {
		_, _ = s.client.Revoke(ctx, old.id) // it would end by itself
	}
	return nil
}

// Watch implements registry.Store. It ends when the connection was lost: the library would go on at
// the revision it had come to, and an etcd that has lost its data counts from 1 again, so that
// nothing would be heard of it until then, or a part of it missed.
func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	first, opened := context.WithTimeout(ctx, s.timeout)
	err := s.open(first)
	opened()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx)) // a member that is cut off says so
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	if err = s.connect(ctx); err != nil {
		if errors.Is(err, errAbsent) {
			err = fmt.Errorf("%w: %s", err, s.refusal()) //nolint:contextcheck // it takes a second more than ctx may have
		}
		return s.failed("connect", err)
	}
	wg.Go(func() {
		if s.client.ActiveConnection().WaitForStateChange(ctx, connectivity.Ready) {
			cancel(errLost)
		}
	})
	all, err := s.list(ctx, prefix)
	if err != nil {
		return s.failed("get "+prefix, err)
	}
	values := make(map[string][]byte, len(all.Kvs))
	for _, kv := range all.Kvs {
		values[string(kv.GetKey())] = kv.GetValue()
	}
	view.Replace(values)
	revision := all.Header.GetRevision()
	watching := s.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithCreatedNotify())
	for changes := range watching {
		err := changes.Err()
		if err == nil && changes.Header.GetRevision() < revision { // it lost its data just now
			err = errLost
		}
		if err != nil {
			return s.failed("watch "+prefix, err)
		}
		revision = changes.Header.GetRevision()
		tell(view, changes.Events)
	}
	return context.Cause(ctx)
}

var (
	errAbsent = errors.New("it cannot be connected to")
	errLost   = errors.New("the connection was lost")
	errClosed = errors.New("the registry is closed")
)

// tell tells view of changes.
func tell(view *registry.View, changes []*clientv3.Event) {
	for _, e := range changes {
		if e.GetType() == clientv3.EventTypeDelete {
			view.Delete(string(e.GetKv().GetKey()))
		} else {
			view.Put(string(e.GetKv().GetKey()), e.GetKv().GetValue())
		}
	}
}

// connect waits until there is a connection. It is not patient where nobody lets it in: clients
// that know no instances yet wait for the reason, and do so for 3 s by default.
func (s *store) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := time.AfterFunc(s.timeout, func() { cancel(errAbsent) })
	defer end.Stop()
	conn := s.client.ActiveConnection()
	for refused := false; ; {
		state := conn.GetState()
		switch state { //nolint:exhaustive // the others are on their way
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return errClosed
		case connectivity.TransientFailure:
			if !refused {
				refused = true
				end.Reset(min(s.timeout, time.Second))
			}
		}
		conn.Connect()
		if !conn.WaitForStateChange(ctx, state) {
			return context.Cause(ctx)
		}
	}
}

func (s *store) list(ctx context.Context, prefix string) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.client.Get(ctx, prefix, clientv3.WithPrefix())
}
