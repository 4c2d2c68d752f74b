// SPDX-License-Identifier: Apache-2.0

// Package etcd is a registry in etcd, version 3.
//
//	r := etcd.New("10.0.0.1:2379,10.0.0.2:2379", nil)
//	defer r.Close()
//	server := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
//	client := yodel.NewClient(r.Service("Shop"), nil)
//
// Each record has its own lease, which ends when the server that announced it is gone. etcd counts
// leases in whole seconds, and grants no lease that is shorter than one and a half of its election
// timeouts.
//
// With authentication, the role of a server needs permissions for its services, and that of a
// client for the services that it calls. A permission is for all keys with a prefix:
//
//	                          yodel/Shop/    yodel/Shop^
//	a server of Shop          readwrite      read
//	a client of Shop          read           read, for rules
//	an operator               readwrite yodel/, for all services
//
// A server that may write yodel/Shop^ keeps what an operator edits in its record, and switches a
// rule off whose Rollback condition is broken. The name of the service is escaped as in a URL.
//
//	etcdctl role grant-permission shop --prefix=true readwrite yodel/Shop/
//	etcdctl role grant-permission shop --prefix=true read yodel/Shop^
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	registry.Options
	// Username and Password are for etcd's authentication. Default: no authentication.
	Username, Password string
	// TLS is the configuration for TLS. Default: no TLS.
	TLS *tls.Config
	// Timeout limits how long a request waits for etcd. Default 5 s.
	Timeout time.Duration
}

// A Registry is a registry in etcd.
type Registry struct {
	*registry.Registry
	store *store
}

// New returns a registry in the etcd cluster with these endpoints, separated by commas. Each is
// HOST:PORT, or a URL with the scheme http, https, unix or unixs. If one is not, all uses of the
// registry fail. New does not wait for a connection. The registry connects again each time that the
// connection is lost.
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
	all, err := registry.Endpoints(endpoints, "http", "https", "unix", "unixs")
	s.wrong = err
	s.endpoints = strings.Join(all, ",")
	s.config = clientv3.Config{
		Endpoints: all, Username: o.Username, Password: o.Password, TLS: o.TLS,
		DialKeepAliveTime: s.timeout, DialKeepAliveTimeout: s.timeout,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			// By default gRPC waits up to two minutes before it connects again. For that time
			// clients would not notice servers that are back.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second / 2},
			MinConnectTimeout: s.timeout,
		})},
		Logger: zap.NewNop(), // calls return the errors
	}
	return &Registry{registry.New(s, &o.Options), s}
}

// Close closes the connections to etcd. Announced records stay until their leases end.
func (r *Registry) Close() error {
	s := r.store
	s.end()
	s.turn <- struct{}{} // a goroutine in open returns soon, because life has ended
	defer func() { <-s.turn }()
	if s.client == nil {
		return nil
	}
	return s.client.Close()
}

// A store is a registry.Store.
type store struct {
	endpoints string
	wrong     error // why the endpoints cannot be used; nil if they can
	config    clientv3.Config
	timeout   time.Duration
	life      context.Context //nolint:containedctx // ends with Close
	end       context.CancelFunc

	turn   chan struct{}    // capacity 1: held while the client is created
	client *clientv3.Client // nil until open has succeeded

	renewals chan renewal // idle

	mu     sync.Mutex
	leases map[string]lease // by key, for keys that were put with a ttl
}

// open creates the client if there is none. With a password, the library waits for etcd while it
// creates the client, and fails if etcd does not answer. Therefore each call of open tries again.
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
	if s.wrong != nil {
		return fmt.Errorf("etcd: %w", s.wrong)
	}
	life, cancel := context.WithCancel(s.life)
	stop := context.AfterFunc(ctx, cancel)
	config := s.config
	config.Context = life
	client, err := clientv3.New(config)
	if !stop() && err == nil { // ctx ended in time for AfterFunc to end the client as well
		err = errors.Join(context.Cause(ctx), client.Close())
	}
	if err != nil {
		cancel()
		return fmt.Errorf("etcd at %q: log in: %w", s.endpoints, err)
	}
	s.client = client
	return nil
}

// failed adds the endpoints and the state of the connection to an error. Without a connection, the
// library's error says only that the deadline has passed, so failed adds the reason. If the user
// lacks a permission, it says which.
func (s *store) failed(what string, err error) error {
	state := s.client.ActiveConnection().GetState()
	switch {
	case errors.Is(err, context.DeadlineExceeded) && state == connectivity.TransientFailure:
		err = fmt.Errorf("%w: %s", err, s.refusal())
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		err = fmt.Errorf("%w: the user %q needs the permission %s", err, s.config.Username, permission(what))
	}
	return fmt.Errorf("etcd at %q (connection: %s): %s: %w", s.endpoints, strings.ToLower(s.client.ActiveConnection().GetState().String()), what, err)
}

// permission returns the permission that an operation on a key needs.
func permission(what string) string {
	operation, key, _ := strings.Cut(what, " ")
	prefix, _, records := strings.Cut(key, "^")
	if records {
		prefix += "^"
	} else {
		prefix = key[:strings.LastIndexByte(key, '/')+1]
	}
	if operation == "put" || operation == "delete" {
		return "readwrite for the prefix " + prefix
	}
	return "read for the prefix " + prefix
}

// Put keeps the lease of the key alive. It writes the record only if the stored record has another
// value or another lease.
func (s *store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return err
	}
	if ttl == 0 {
		if _, err := s.client.Put(ctx, key, string(value)); err != nil {
			return s.notPut(key, len(key)+len(value), err)
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
		return s.notPut(key, 3*len(key)+2*len(value), err) // what the request has
	}
	return nil
}

// maxRequest is the size of the largest request that etcd takes by default (--max-request-bytes).
const maxRequest = 1536 << 10

// notPut returns the error of a request of a size that has not put a record. The library refuses to
// send a request of 2 MiB.
func (s *store) notPut(key string, size int, err error) error {
	if size > maxRequest && (errors.Is(err, rpctypes.ErrRequestTooLarge) || status.Code(err) == codes.ResourceExhausted) {
		return registry.TooLong(s.String(), "record", key, size, maxRequest, "bytes for a request")
	}
	return s.failed("put "+key, err)
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
		_, _ = s.client.Revoke(ctx, old.id) // an error does no harm, because the lease ends by itself
	}
	return nil
}

// Watch implements registry.Store. It ends when the connection is lost. Otherwise the library would
// continue at the last revision that it has seen. An etcd that has lost its data counts revisions
// from 1 again, so the library would miss changes until that revision.
func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	first, opened := context.WithTimeout(ctx, s.timeout)
	err := s.open(first)
	opened()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx)) // a member without a leader sends an error
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	if err = s.connect(ctx); err != nil {
		if errors.Is(err, errAbsent) {
			err = fmt.Errorf("%w: %s", err, s.refusal())
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
		if err == nil && changes.Header.GetRevision() < revision { // etcd has just lost its data
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

// tell passes changes to view.
func tell(view *registry.View, changes []*clientv3.Event) {
	for _, e := range changes {
		if e.GetType() == clientv3.EventTypeDelete {
			view.Delete(string(e.GetKv().GetKey()))
		} else {
			view.Put(string(e.GetKv().GetKey()), e.GetKv().GetValue())
		}
	}
}

// connect waits until there is a connection. If a connection attempt fails, it waits for at most
// one more second, because clients that know no instances yet wait for the reason, by default for 3
// s.
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

// Writable implements the optional method of registry.Store. An etcd whose disk is full still takes
// deletions, so Writable tries a transaction that would put the key if it existed.
func (s *store) Writable(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return err
	}
	exists := clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
	if _, err := s.client.Txn(ctx).If(exists).Then(clientv3.OpPut(key, "")).Commit(); err != nil {
		return s.failed("put "+path.Dir(path.Dir(key))+"/", err)
	}
	return nil
}
