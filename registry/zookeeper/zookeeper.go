// SPDX-License-Identifier: Apache-2.0

// Package zookeeper is a registry in Apache ZooKeeper, 3.5 or later.
//
//	r := zookeeper.New("10.0.0.1:2181,10.0.0.2:2181", nil)
//	defer r.Close()
//	server := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
//	client := yodel.NewClient(r.Service("Shop"), nil)
//
// Its records are ephemeral nodes. A record ends with the session of the process that announced it,
// or when the process does not announce it again in time. The services that a client follows share
// sessions, up to a thousand in each.
package zookeeper

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	// Options are the options of all registries. Reconcile is 10 min by default, because sessions
	// report every change.
	registry.Options
	// Session is the session timeout: ZooKeeper removes the records of a process from which it has
	// not heard for that time. The server may limit the value. Default 10 s.
	Session time.Duration
	// Username and Password are for ZooKeeper's digest authentication. The first announcement of a
	// service makes them the owner of the service's folder in ZooKeeper. After that, announcing the
	// service requires the same credentials, and every client can read it. Default: no
	// authentication.
	Username, Password string
	// TLS is the configuration for TLS. Default: no TLS. If the certificates contain names, set its
	// ServerName, because the registry resolves the names of the servers before it connects.
	TLS *tls.Config
}

// A Registry is a registry in ZooKeeper.
type Registry struct {
	*registry.Registry
	store *store
}

// New returns a registry in the ZooKeeper ensemble at these servers, separated by commas. Each is
// HOST:PORT, or HOST for the port 2181. If one is not, all uses of the registry fail. The registry
// connects when it is first used, and again each time that the connection is lost.
func New(servers string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	s := newStore(servers, *o)
	return &Registry{registry.New(s, &s.opts.Options), s}
}

// newStore returns the store for these servers.
func newStore(servers string, opts Options) *store {
	if opts.Session <= 0 {
		opts.Session = 10 * time.Second
	}
	opts.Session = min(opts.Session, math.MaxInt32*time.Millisecond) // the maximum that the protocol can carry
	if opts.Reconcile <= 0 {
		// A session reports every change or ends. Beginning a new one is work for the server.
		opts.Reconcile = 10 * time.Minute
	}
	all, err := endpoints(servers)
	s := &store{
		servers: all, wrong: err, opts: opts, acl: zk.WorldACL(zk.PermAll), shared: zk.WorldACL(zk.PermAll),
		records: make(map[string]*record), sessions: make(map[*session]struct{}), raw: opts.Layout != nil && opts.Layout != registry.JSON,
	}
	if s.opts.Prefix == "" {
		s.opts.Prefix = "yodel"
	}
	if opts.Username != "" {
		s.acl = append(zk.AuthACL(zk.PermAll), zk.WorldACL(zk.PermRead)...)
		s.shared = append(zk.AuthACL(zk.PermAll), zk.WorldACL(zk.PermRead|zk.PermCreate)...)
	}
	return s
}

// endpoints returns the servers in a list.
func endpoints(list string) ([]string, error) {
	all, err := registry.Endpoints(list)
	for i, one := range all {
		if !strings.ContainsAny(one, ":/ ") {
			all[i] += ":" + strconv.Itoa(zk.DefaultPort)
		}
	}
	if err != nil {
		_, err = registry.Endpoints(strings.Join(all, ","))
	}
	return all, err
}

// Close ends the sessions, and so withdraws the announced records.
func (r *Registry) Close() error {
	r.store.close()
	return nil
}

// A store is a registry.Store.
type store struct {
	servers []string
	wrong   error // why the servers cannot be used; nil if they can
	opts    Options
	acl     []zk.ACL // of records and their folders
	shared  []zk.ACL // of the folders above
	raw     bool     // the names in keys are not escaped: see node

	wg sync.WaitGroup // for all goroutines of the store

	beginning sync.Mutex
	current   *session // owns the records; nil before the first use

	joining  sync.Mutex
	joinable *session // the session that watches join; nil if there is none

	mu       sync.Mutex
	closed   bool
	sessions map[*session]struct{}
	records  map[string]*record
}

// A record is a node that was announced, or that a call is about to change or read.
type record struct {
	turn chan struct{} // capacity 1: held by the goroutine that changes the node
	end  *time.Timer   // deletes the node if it is not announced again
	due  time.Time     // when the ttl ends, zero if there is none; guarded by turn
}

var errClosed = errors.New("the registry is closed")

func (s *store) close() {
	s.mu.Lock()
	s.closed = true
	for _, r := range s.records {
		r.end.Stop()
	}
	for session := range s.sessions {
		s.endLocked(session)
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// node returns the node of a key. The part of the key after the service becomes a single node, even
// if it contains slashes, which only other layouts than those of JSON leave in it.
func (s *store) node(key string) string {
	prefix := strings.TrimSuffix(s.opts.Prefix, "/") + "/"
	service, name, ok := strings.Cut(strings.TrimPrefix(key, prefix), "/")
	node := "/" + strings.Trim(prefix, "/") + "/" + undotted(service)
	if ok && name != "" {
		if s.raw {
			name = escape(name)
		}
		node += "/" + undotted(name)
	}
	return node
}

// escape escapes slashes and what ZooKeeper does not allow in the name of a node, among them all
// characters beyond U+D7FF. It also escapes each % that could be taken for such an escape.
func escape(name string) string {
	var b strings.Builder
	for i, r := range name {
		_, size := utf8.DecodeRuneInString(name[i:])
		_, err := url.PathUnescape(name[i:min(i+3, len(name))])
		switch {
		case r == '/', r == '%' && err == nil, r < ' ', r >= 0x7F && r <= 0x9F, r > 0xD7FF:
			for _, c := range []byte(name[i : i+size]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unescape undoes escape.
func unescape(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] == '%' && i+2 < len(name) {
			if c, err := strconv.ParseUint(name[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(name[i])
	}
	return b.String()
}

// maxRecord is the size of the largest request that ZooKeeper takes by default (jute.maxbuffer). It
// ends the connection of a client that sends a larger one, and the client would send it again.
const maxRecord = 1<<20 - 1

// requestRoom is for what is in a request beside the node and its value.
const requestRoom = 1 << 10

// fits returns an error if ZooKeeper does not take a node with this value.
func (s *store) fits(node string, value []byte) error {
	if size := len(node) + len(value) + requestRoom; size > maxRecord {
		return registry.TooLong("zookeeper", "record", node, size, maxRecord, "bytes")
	}
	return nil
}

// undotted escapes the names "." and "..", which ZooKeeper does not allow for nodes.
func undotted(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return name
}

// change calls do with exclusive access to a node. The library does not support contexts. If ctx
// ends first, change returns, and the current request of do ends by itself or with the connection.
// Other changes of the node wait until then.
func (s *store) change(ctx context.Context, what, node string, do func(ctx context.Context, conn *zk.Conn, r *record) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Session)
	defer cancel()
	err := ctx.Err()
	if err == nil {
		done := make(chan error, 1)
		if err = s.start(func() { done <- s.alone(ctx, node, do) }); err == nil {
			select {
			case err = <-done:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("zookeeper at %q: %s %s: %w", strings.Join(s.servers, ","), what, node, err)
	}
	return err
}

// start runs do on a goroutine for which close waits. It fails if the store is closed.
func (s *store) start(do func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.wg.Go(do)
	return nil
}

func (s *store) alone(ctx context.Context, node string, do func(ctx context.Context, conn *zk.Conn, r *record) error) error {
	r := s.record(node) //nolint:contextcheck // what ends a record outlives its announcement
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := s.try(ctx, r, do)
	if another(err) && ctx.Err() == nil {
		err = s.try(ctx, r, do)
	}
	return err
}

// try calls do once, with the current session.
func (s *store) try(ctx context.Context, r *record, do func(ctx context.Context, conn *zk.Conn, r *record) error) error {
	session, err := s.announcing()
	if err == nil {
		err = session.authenticate(s.opts.Username, s.opts.Password)
	}
	if err == nil {
		err = do(ctx, session.conn, r)
	}
	return err
}

// another reports whether do should be tried again on the next connection. For example, the library
// may have tried to connect before the server was up.
func another(err error) bool {
	return errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrClosing) ||
		errors.Is(err, zk.ErrSessionExpired)
}

func (s *store) record(node string) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[node]
	if r == nil {
		r = &record{turn: make(chan struct{}, 1), end: time.AfterFunc(time.Hour, func() { s.forget(node) })}
		r.end.Stop()
		s.records[node] = r
	}
	return r
}

// Put implements registry.Store.
func (s *store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return s.put(ctx, s.node(key), bytes.Clone(value), ttl)
}

// put sets the value of a node, which the store then owns. The node ends as a key does in Put.
func (s *store) put(ctx context.Context, node string, value []byte, ttl time.Duration) error {
	if err := s.fits(node, value); err != nil {
		return err
	}
	return s.change(ctx, "announce", node, func(ctx context.Context, conn *zk.Conn, r *record) error {
		if ttl == 0 {
			r.end.Stop()
			r.due = time.Time{}
			return s.keep(ctx, conn, node, value)
		}
		err := s.write(ctx, conn, node, value)
		if err == nil {
			r.due = time.Now().Add(ttl)
			r.end.Reset(ttl)
		}
		return err
	})
}

// write makes node an ephemeral node of the current session.
func (s *store) write(ctx context.Context, conn *zk.Conn, node string, value []byte) error {
	old, stat, err := conn.Get(node)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	made := &zk.CreateRequest{Path: node, Data: value, Acl: s.acl, Flags: zk.FlagEphemeral}
	switch {
	case err == nil && stat.EphemeralOwner == conn.SessionID():
		if !bytes.Equal(old, value) {
			_, err = conn.Set(node, value, -1)
		}
	case err == nil: // the other session is about to end, and would take the node with it
		_, err = conn.Multi(&zk.DeleteRequest{Path: node, Version: -1}, made)
	case errors.Is(err, zk.ErrNoNode):
		if err = s.makeParents(ctx, conn, path.Dir(node), s.acl); err == nil {
			_, err = conn.Multi(made)
		}
	}
	return err
}

// keep makes node a persistent node, which stays when this session ends.
func (s *store) keep(ctx context.Context, conn *zk.Conn, node string, value []byte) error {
	_, err := conn.Set(node, value, -1)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	if err = s.makeParents(ctx, conn, path.Dir(node), s.acl); err == nil {
		_, err = conn.Create(node, value, zk.FlagPersistent, s.acl)
	}
	return err
}

// Get implements registry.Store.
func (s *store) Get(ctx context.Context, key string) (value []byte, err error) {
	node := s.node(key)
	found := make(chan []byte, 1) // buffered: no goroutine receives the value after ctx has ended
	err = s.change(ctx, "read", node, func(_ context.Context, conn *zk.Conn, _ *record) error {
		value, _, err := conn.Get(node)
		if err == nil {
			found <- value
		}
		if errors.Is(err, zk.ErrNoNode) {
			found <- nil
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-found, nil
}

// makeParents creates the folder of the records and the folders above it, all of which are
// persistent. ZooKeeper checks the permission to delete a node against the folder, not against the
// node.
func (s *store) makeParents(ctx context.Context, conn *zk.Conn, node string, acl []zk.ACL) error {
	if node == "/" {
		return nil
	}
	if exists, _, err := conn.Exists(node); exists || err != nil {
		return err
	}
	err := s.makeParents(ctx, conn, path.Dir(node), s.shared)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		_, err = conn.Create(node, nil, zk.FlagPersistent, acl)
	}
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// forget deletes a record that was not announced again in time, because the session of the process
// still exists.
func (s *store) forget(node string) {
	err := s.change(context.Background(), "forget", node, func(_ context.Context, conn *zk.Conn, r *record) error {
		if r.due.IsZero() || time.Now().Before(r.due) {
			return nil // it has just been announced again or withdrawn
		}
		_, stat, err := conn.Exists(node)
		if err != nil || stat.EphemeralOwner != conn.SessionID() {
			return err // another process has announced itself at the address
		}
		return remove(conn, node)
	})
	if err != nil && !errors.Is(err, errClosed) {
		s.record(node).end.Reset(s.opts.Session)
	}
}

func remove(conn *zk.Conn, node string) error {
	if err := conn.Delete(node, -1); !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	return nil
}

// Delete implements registry.Store.
func (s *store) Delete(ctx context.Context, key string) error { return s.remove(ctx, s.node(key)) }

// remove removes a node.
func (s *store) remove(ctx context.Context, node string) error {
	return s.change(ctx, "withdraw", node, func(_ context.Context, conn *zk.Conn, r *record) error {
		r.end.Stop()
		r.due = time.Time{}
		return remove(conn, node)
	})
}
