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
	view   *registry.View
	news   chan struct{} // capacity 1

	mu    sync.Mutex
	dirty map[string]bool // children that have changed
	whole bool            // whether the list of children has changed

	known map[string]bool // children that ZooKeeper watches; only read uses it
	told  bool
}

// Watch implements registry.Store.
func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	w := &watch{
		node: s.node(prefix), prefix: prefix, view: view, whole: true,
		dirty: make(map[string]bool), known: make(map[string]bool), news: make(chan struct{}, 1),
	}
	x, err := s.begin(w.event)
	if err != nil {
		return fmt.Errorf("zookeeper at %q: watch %s: %w", strings.Join(s.servers, ","), w.node, err)
	}
	defer s.end(x)
	stop := context.AfterFunc(ctx, func() { s.end(x) }) // so that read returns
	defer stop()
	if err = x.authenticate(s.opts.Username, s.opts.Password); err == nil {
		w.conn = x.conn
		err = w.follow(ctx, x.isOver)
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("zookeeper at %q: watch %s: %w", strings.Join(s.servers, ","), w.node, err)
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
		for child := range w.known {
			if !now[child] {
				w.view.Delete(w.key(child))
			}
		}
		w.known = now
	}
	return w.readChildren(dirty)
}

func (w *watch) key(child string) string { return w.prefix + strings.ReplaceAll(child, slash, "/") }

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

// tell passes to the view the children that were read.
func (w *watch) tell(values map[string][]byte, gone []string) {
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
