// SPDX-License-Identifier: Apache-2.0

// Package memory is a registry inside the process. It is for tests, and for programs that contain
// both client and server.
package memory

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/registry"
)

// New returns an empty registry.
func New(o *registry.Options) *registry.Registry {
	return registry.New(&store{values: make(map[string]*value), changed: make(chan struct{})}, o)
}

// A store is a registry.Store.
type store struct {
	mu      sync.Mutex
	values  map[string]*value
	changed chan struct{} // closed and replaced at every change
}

type value struct {
	text []byte
	end  *time.Timer // nil if the value does not expire
}

func (v *value) stop() {
	if v.end != nil {
		v.end.Stop()
	}
}

func (s *store) Put(ctx context.Context, key string, text []byte, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.values[key]
	if old != nil {
		old.stop()
	}
	v := &value{text: bytes.Clone(text)}
	if ttl > 0 {
		v.end = time.AfterFunc(ttl, func() { s.forget(key, v) })
	}
	s.values[key] = v
	if old == nil || !bytes.Equal(old.text, text) {
		s.changedLocked()
	}
	return nil
}

// Get implements registry.Store.
func (s *store) Get(ctx context.Context, key string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.values[key]; v != nil {
		return bytes.Clone(v.text), nil
	}
	return nil, nil
}

func (s *store) Delete(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	v := s.values[key]
	s.mu.Unlock()
	if v != nil {
		s.forget(key, v)
	}
	return nil
}

// forget deletes v, unless it has been replaced.
func (s *store) forget(key string, v *value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values[key] == v {
		v.stop()
		delete(s.values, key)
		s.changedLocked()
	}
}

func (s *store) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		all, changed := make(map[string][]byte), s.changed
		for key, v := range s.values {
			if strings.HasPrefix(key, prefix) {
				all[key] = v.text
			}
		}
		s.mu.Unlock()
		view.Replace(all)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}
