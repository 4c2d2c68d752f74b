// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/yodel-rpc/yodel/registry"
)

// A watch is one Watch of the children of a node. ZooKeeper reports only once that a node has
// changed, and does not report the change itself. So the watch reads the node again to get the
// change and to be notified of the next one.
type watch struct {
	conn   *zk.Conn
	node   string
	prefix string // of the keys
	raw    bool   // see store
	view   *registry.View
	news   chan struct{} // capacity 1

	mu    sync.Mutex
	dirty map[string]bool // children that have changed
	whole bool            // whether the list of children has changed

	known map[string]bool // children that ZooKeeper watches; only read uses it
	told  bool

	telling sync.Mutex
	silent  bool // Watch has returned
}

// Watch implements registry.Store.
func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	w := &watch{
		node: s.node(prefix), prefix: prefix, raw: s.raw, view: view, whole: true,
		dirty: make(map[string]bool), known: make(map[string]bool), news: make(chan struct{}, 1),
	}
	ended := make(chan error, 1)
	err := s.start(func() { ended <- s.watch(ctx, w) })
	if err == nil {
		select {
		case err = <-ended:
		case <-ctx.Done(): // a request may still wait for the server: it ends by itself, or with the session
		}
	}
	w.silence()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it is the end that was asked for
	}
	return fmt.Errorf("zookeeper at %q: watch %s: %w", strings.Join(s.servers, ","), w.node, err)
}

// watch runs w in a session that it shares with other watches.
func (s *store) watch(ctx context.Context, w *watch) error {
	x, err := s.join(w)
	if err != nil {
		return err
	}
	defer s.leave(x, w)
	if err = x.authenticate(s.opts.Username, s.opts.Password); err != nil {
		return err
	}
	w.conn = x.conn
	return w.follow(ctx, x.isOver)
}

// silence makes w tell its view nothing more.
func (w *watch) silence() {
	w.telling.Lock()
	defer w.telling.Unlock()
	w.silent = true
}

func (w *watch) follow(ctx context.Context, over <-chan struct{}) error {
	for {
		if err := w.read(); err != nil {
			return err
		}
		select {
		case <-w.news:
		case <-over:
			return errOver
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// event is the library's callback for all events.
func (w *watch) event(e zk.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.Type == zk.EventSession || e.Type == zk.EventNotWatching:
		return
	case e.Path == w.node:
		w.whole = true
	default:
		w.dirty[path.Base(e.Path)] = true
	}
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// read reads the nodes that have changed, and makes the server watch them again.
func (w *watch) read() error {
	w.mu.Lock()
	dirty, whole := w.dirty, w.whole
	w.dirty, w.whole = make(map[string]bool), false
	w.mu.Unlock()
	if whole {
		children, err := w.children()
		if err != nil {
			return err
		}
		now := make(map[string]bool, len(children))
		for _, child := range children {
			now[child] = true
			if !w.known[child] {
				dirty[child] = true
			}
		}
		var gone []string
		for child := range w.known {
			if !now[child] {
				gone = append(gone, child)
			}
		}
		if w.told {
			w.tell(nil, gone)
		}
		w.known = now
	}
	return w.readChildren(dirty)
}

// key returns the key of a child.
func (w *watch) key(child string) string {
	if w.raw {
		child = unescape(child)
	}
	return w.prefix + child
}

// children lists the children and watches the list. If the node does not exist, it watches for the
// node to be created.
func (w *watch) children() ([]string, error) {
	for {
		children, _, _, err := w.conn.ChildrenW(w.node)
		if !errors.Is(err, zk.ErrNoNode) {
			return children, err
		}
		if exists, _, _, err := w.conn.ExistsW(w.node); err != nil || !exists {
			return nil, err
		}
	}
}

// atOnce is the maximum number of nodes that are read concurrently.
const atOnce = 64

// readChildren reads and watches children, and passes them to the view.
func (w *watch) readChildren(dirty map[string]bool) error {
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		failed error
		gone   []string
		values = make(map[string][]byte, len(dirty))
		next   = make(chan string)
	)
	for range min(atOnce, len(dirty)) {
		wg.Go(func() {
			for child := range next {
				value, _, _, err := w.conn.GetW(path.Join(w.node, child))
				mu.Lock()
				switch {
				case err == nil:
					values[w.key(child)] = value
				case errors.Is(err, zk.ErrNoNode):
					gone = append(gone, child)
				default:
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	for child := range dirty {
		if w.known[child] {
			next <- child
		}
	}
	close(next)
	wg.Wait()
	if failed != nil {
		return failed
	}
	w.tell(values, gone)
	return nil
}

// tell passes to the view the children that were read, and those that are gone.
func (w *watch) tell(values map[string][]byte, gone []string) {
	w.telling.Lock()
	defer w.telling.Unlock()
	if w.silent {
		return
	}
	if !w.told {
		w.told = true
		w.view.Replace(values)
	}
	for key, value := range values {
		w.view.Put(key, value)
	}
	for _, child := range gone {
		delete(w.known, child) // it is not watched, and may be created again
		w.view.Delete(w.key(child))
	}
}
