// SPDX-License-Identifier: Apache-2.0

// Package zookeeper is a registry in Apache ZooKeeper, 3.5 or later.
package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	registry.Options
	// Session is how long ZooKeeper waits for a process that it does not hear of, until it forgets what that has announced. The server may
	// have bounds of its own. Default 10 s.
	Session time.Duration
	// Username and Password are for ZooKeeper's digest authentication. Default none.
	Username, Password string
}

// A Registry is a registry in ZooKeeper. Its records are ephemeral nodes, which end with the session of the process that
// announced them, or when the announcement is not renewed.
type Registry struct {
	*registry.Registry
	store *store
}

// New returns a registry in the ZooKeeper ensemble at these servers, separated by commas. It does not wait for a connection, and connects
// again, with another session if need be, whenever it was lost.
func New(servers string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	session := o.Session
	if session <= 0 {
		session = 10 * time.Second
	}
	s := &store{records: make(map[string]*time.Timer), watches: make(map[*watch]struct{})}
	s.conn, _, s.err = zk.Connect(strings.Split(servers, ","), session, zk.WithLogger(silent{}), zk.WithEventCallback(s.event))
	if s.err == nil && o.Username != "" {
		go func() { _ = s.conn.AddAuth("digest", []byte(o.Username+":"+o.Password)) }() // who is refused is told so by each call
	}
	return &Registry{registry.New(s, &o.Options), s}
}

// Close ends the session, and with it what was announced.
func (r *Registry) Close() error {
	if r.store.err == nil {
		r.store.conn.Close()
	}
	return r.store.err
}

// silent is the library's log: what goes wrong is the error of a call.
type silent struct{}

func (silent) Printf(string, ...any) {}

// A store is a registry.Store.
type store struct {
	conn *zk.Conn
	err  error // why there is none

	mu      sync.Mutex
	records map[string]*time.Timer // by path: ends what is not announced again
	watches map[*watch]struct{}
}

// do carries out a call of the library, which knows no context: when ctx ends first, the call ends on its own when the connection
// is made or has failed.
func (s *store) do(ctx context.Context, what, at string, call func() error) error {
	if s.err != nil {
		return s.err
	}
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		if err != nil {
			err = fmt.Errorf("zookeeper: %s %s: %w", what, at, err)
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("zookeeper: %s %s: %w", what, at, context.Cause(ctx))
	}
}

// Put makes the record an ephemeral node of this session.
func (s *store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	node := "/" + key
	err := s.do(ctx, "announce", node, func() error { return s.put(node, bytes.Clone(value)) })
	if err == nil {
		s.expire(node, ttl)
	}
	return err
}

func (s *store) put(node string, value []byte) error {
	old, stat, err := s.conn.Get(node)
	switch {
	case err == nil && stat.EphemeralOwner == s.conn.SessionID():
		if !bytes.Equal(old, value) {
			_, err = s.conn.Set(node, value, -1)
		}
		return err
	case err == nil: // of a session that is ending, and would take the node with it
		if err = s.conn.Delete(node, stat.Version); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	case !errors.Is(err, zk.ErrNoNode):
		return err
	}
	_, err = s.conn.Create(node, value, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	if errors.Is(err, zk.ErrNoNode) {
		if err = s.makeParents(path.Dir(node)); err == nil {
			_, err = s.conn.Create(node, value, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		}
	}
	return err
}

func (s *store) makeParents(node string) error {
	if node == "/" {
		return nil
	}
	_, err := s.conn.Create(node, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	if errors.Is(err, zk.ErrNoNode) {
		if err = s.makeParents(path.Dir(node)); err == nil {
			_, err = s.conn.Create(node, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
		}
	}
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// expire deletes a record that is not announced again, for its session lives on.
func (s *store) expire(node string, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := s.records[node]; end != nil {
		end.Stop()
	}
	s.records[node] = time.AfterFunc(ttl, func() { _ = s.conn.Delete(node, -1) }) // without a session it goes by itself
}

// Delete implements registry.Store.
func (s *store) Delete(ctx context.Context, key string) error {
	node := "/" + key
	s.mu.Lock()
	if end := s.records[node]; end != nil {
		end.Stop()
		delete(s.records, node)
	}
	s.mu.Unlock()
	return s.do(ctx, "withdraw", node, func() error {
		if err := s.conn.Delete(node, -1); !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		return nil
	})
}

// event tells watches what has changed. It is called by the library's reading goroutine.
func (s *store) event(e zk.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.event(e)
	}
}

// A watch is one Watch of the children of a node. The library's own watches say only that a node has changed, once.
type watch struct {
	store  *store
	node   string
	prefix string // of keys
	view   *registry.View

	news   chan struct{} // capacity 1

	mu    sync.Mutex
	dirty map[string]bool // children that have changed
	whole bool            // the list of children has
	all   bool            // everything may have
	lost  bool            // there is no session any more

	known map[string]bool // children; of read alone
	told  bool
}

func (w *watch) event(e zk.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.Type == zk.EventSession && e.State == zk.StateHasSession: // what happened meanwhile is not known
		w.whole, w.all = true, true
	case e.Type == zk.EventSession && (e.State == zk.StateExpired || e.State == zk.StateAuthFailed), e.Type == zk.EventNotWatching:
		w.lost = true
	case e.Path == w.node:
		w.whole = true
	case path.Dir(e.Path) == w.node:
		w.dirty[path.Base(e.Path)] = true
	default:
		return
	}
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// Watch implements registry.Store.
func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	w := &watch{
		store: s, node: "/" + strings.TrimSuffix(prefix, "/"), prefix: prefix, view: view, whole: true,
		dirty: make(map[string]bool), known: make(map[string]bool), news: make(chan struct{}, 1),
	}
	s.mu.Lock()
	s.watches[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, w)
	}()
	for {
		if err := s.do(ctx, "watch", w.node, w.read); err != nil {
			return err
		}
		select {
		case <-w.news:
		case <-ctx.Done():
			return nil
		}
	}
}

// errLost is why a watch that the server has forgotten ends.
var errLost = errors.New("the session has ended")

// read reads what has changed, and has the server watch it again.
func (w *watch) read() error {
	w.mu.Lock()
	dirty, whole, all, lost := w.dirty, w.whole, w.all, w.lost
	w.dirty, w.whole, w.all = make(map[string]bool), false, false
	w.mu.Unlock()
	if lost {
		return errLost
	}
	if whole {
		children, err := w.children()
		if err != nil {
			return err
		}
		now := make(map[string]bool, len(children))
		for _, child := range children {
			now[child] = true
			if all || !w.known[child] {
				dirty[child] = true
			}
		}
		for child := range w.known {
			if !now[child] {
				w.view.Delete(w.prefix + child)
			}
		}
		w.known = now
	}
	return w.readChildren(dirty)
}

// children lists the children and watches the list, or for the node to be made.
func (w *watch) children() ([]string, error) {
	for {
		children, _, _, err := w.store.conn.ChildrenW(w.node)
		if !errors.Is(err, zk.ErrNoNode) {
			return children, err
		}
		if exists, _, _, err := w.store.conn.ExistsW(w.node); err != nil || !exists {
			return nil, err
		}
	}
}

// atOnce is how many nodes are read at the same time.
const atOnce = 32

// readChildren reads and watches children, and tells the view of them.
func (w *watch) readChildren(dirty map[string]bool) error {
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		failed error
		values = make(map[string][]byte, len(dirty))
		tokens = make(chan struct{}, atOnce)
	)
	for child := range dirty {
		if !w.known[child] {
			continue
		}
		tokens <- struct{}{}
		wg.Go(func() {
			value, _, _, err := w.store.conn.GetW(path.Join(w.node, child))
			mu.Lock()
			switch {
			case err == nil:
				values[w.prefix+child] = value
			case !errors.Is(err, zk.ErrNoNode): // the list will say that it has gone
				failed = err
			}
			mu.Unlock()
			<-tokens
		})
	}
	wg.Wait()
	switch {
	case failed != nil:
		return failed
	case !w.told:
		w.told = true
		w.view.Replace(values)
	default:
		for key, value := range values {
			w.view.Put(key, value)
		}
	}
	return nil
}
