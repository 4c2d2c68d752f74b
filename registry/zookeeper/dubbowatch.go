// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"reflect"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/internal/dubborecord"
)

// A dubboService is the resolver for a service of Dubbo.
type dubboService struct {
	*Dubbo
	name string
	key  dubborecord.Key
}

// String describes the resolver in errors and logs.
func (s *dubboService) String() string { return fmt.Sprintf("service %q in %v", s.name, s.Dubbo) }

// Watch implements discovery.Resolver.
func (s *dubboService) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	w := &nodes{news: make(chan struct{}, 1), values: make(map[string][]byte), children: make(map[string][]string), reading: make(map[string]bool)}
	x, err := s.store.begin(w.event, false)
	if err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	defer s.store.end(x)
	stop := context.AfterFunc(ctx, func() { s.store.end(x) }) // so that reading returns
	defer stop()
	if err = x.authenticate(s.store.opts.Username, s.store.opts.Password); err == nil {
		w.conn = x.conn
		err = s.follow(ctx, w, x.isOver, update)
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("%v: %w", s, err)
}

// follow passes the instances to update, at first and after each change.
func (s *dubboService) follow(ctx context.Context, w *nodes, over <-chan struct{}, update func([]discovery.Instance)) error {
	var last []discovery.Instance
	for first := true; ; first = false {
		now, err := s.instances(w)
		if err != nil {
			return err
		}
		if first || !reflect.DeepEqual(now, last) {
			update(now)
		}
		last = now
		select {
		case <-w.news:
		case <-over:
			return errOver
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// instances returns the instances of the service. A record that cannot be read is logged and left
// out.
func (s *dubboService) instances(w *nodes) ([]discovery.Instance, error) {
	logger := cmp.Or(s.store.opts.Logger, slog.Default())
	names, err := w.list(providersOf(s.key.Interface))
	if err != nil {
		return nil, err
	}
	var all []discovery.Instance
	for _, name := range names {
		text, err := url.QueryUnescape(name)
		if err == nil {
			var in discovery.Instance
			var ok bool
			if in, ok, err = dubborecord.ParseURL(text, s.key); ok {
				all = append(all, in)
			}
		}
		if err != nil {
			logger.Warn("a provider of Dubbo has a record that cannot be read", "rpcService", s.name, "err", err)
		}
	}
	applications, err := w.value(dubboMapping + s.key.Interface)
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(string(applications), ",") {
		if name == "" {
			continue
		}
		ids, err := w.list(dubboServices + "/" + name)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			of, bad, err := s.ofApplication(w, name, id)
			if err != nil {
				return nil, err
			}
			if bad != nil {
				logger.Warn("an application of Dubbo has a record that cannot be read", "record", name+"/"+id, "err", bad)
			}
			all = append(all, of...)
		}
	}
	return dubborecord.Merge(all), nil
}

// ofApplication returns the instances of the service in an instance of an application. Bad is why a
// record cannot be read.
func (s *dubboService) ofApplication(w *nodes, name, id string) (all []discovery.Instance, bad, err error) {
	value, err := w.value(dubboServices + "/" + name + "/" + id)
	if err != nil || value == nil {
		return nil, nil, err
	}
	var in discovered
	if bad = json.Unmarshal(value, &in); bad != nil {
		return nil, bad, nil
	}
	var about []byte
	if revision := in.Payload.Metadata[dubborecord.KeyRevision]; revision != "" && !strings.Contains(revision, "/") {
		for _, folder := range dubboMetadata {
			if about, err = w.value(folder + name + "/" + revision); err != nil {
				return nil, nil, err
			}
			if len(about) > 0 {
				break
			}
		}
	}
	all, bad = dubborecord.Instances(s.key, in.Address, in.Payload.Metadata, about)
	return all, bad, nil
}

// A nodes reads nodes of ZooKeeper, and keeps what it has read until the server reports a change.
type nodes struct {
	conn *zk.Conn
	news chan struct{} // capacity 1

	mu       sync.Mutex
	values   map[string][]byte   // nil for a node that does not exist
	children map[string][]string // as values
	reading  map[string]bool     // nodes that are being read and have not changed meanwhile
}

// event is the library's callback for all events.
func (w *nodes) event(e zk.Event) {
	if e.Type == zk.EventSession || e.Type == zk.EventNotWatching {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.values, e.Path)
	delete(w.children, e.Path)
	delete(w.reading, e.Path)
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// value returns the value of a node, or nil if there is no node. The server reports its next
// change.
func (w *nodes) value(node string) ([]byte, error) {
	return readNode(w, w.values, node, func() ([]byte, error) {
		value, _, _, err := w.conn.GetW(node)
		if value == nil && err == nil {
			value = []byte{}
		}
		return value, err
	})
}

// list returns the children of a node, or nil if there is no node. The server reports its next
// change.
func (w *nodes) list(node string) ([]string, error) {
	return readNode(w, w.children, node, func() ([]string, error) {
		names, _, _, err := w.conn.ChildrenW(node)
		return names, err
	})
}

// readNode returns what is kept of a node, or reads it.
func readNode[T any](w *nodes, kept map[string]T, node string, read func() (T, error)) (T, error) {
	w.mu.Lock()
	known, ok := kept[node]
	if !ok {
		w.reading[node] = true
	}
	w.mu.Unlock()
	if ok {
		return known, nil
	}
	var got T
	for {
		var exists bool
		var err error
		if got, err = read(); err == nil {
			break
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return got, err
		}
		if exists, _, _, err = w.conn.ExistsW(node); err != nil {
			return got, err
		}
		if !exists {
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reading[node] { // otherwise it has changed, and is read again
		kept[node] = got
		delete(w.reading, node)
	}
	return got, nil
}
