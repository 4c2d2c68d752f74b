// SPDX-License-Identifier: Apache-2.0

package keys_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/conformance/keys"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var (
	length = flag.Duration("keys.for", 1500*time.Millisecond, "how long to run for each kind of server")
	seed   = flag.Uint64("keys.seed", rand.Uint64(), "the schedule")
)

func TestMain(m *testing.M) {
	flag.Parse()
	yodeltest.VerifyNoLeaks(m)
}

func TestNoKeyIsExecutedTwice(t *testing.T) {
	t.Attr("rerun", "never")
	t.Logf("-keys.seed=%d", *seed)
	shared := &sharedStore{entries: make(map[string]*entry)}
	for _, kind := range []keys.Kind{
		{Name: "no memory", Memory: func() (once.KeyMemory, func()) { return nil, func() {} }},
		{Name: "per process", Memory: func() (once.KeyMemory, func()) { return once.With(nil), func() {} }, Repeats: true},
		{Name: "shared", Memory: func() (once.KeyMemory, func()) {
			handle := &storeHandle{sharedStore: shared}
			return once.With(&once.Options{Store: handle, Lease: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}), func() { handle.dead.Store(true) }
		}, Repeats: true},
		{Name: "per process, forgets soon", Memory: func() (once.KeyMemory, func()) {
			return once.With(&once.Options{Keep: 15 * time.Millisecond}), func() {}
		}},
	} {
		kind.Recommended = recommended.Client
		t.Run(kind.Name, func(t *testing.T) { t.Log(keys.Run(t, kind, *seed, *length)) })
	}
}

// A sharedStore is a store outside of the processes that share it.
type sharedStore struct {
	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	owner   string
	value   []byte
	settled bool
	lease   time.Time // until when the owner is alive
	ends    time.Time
}

// A storeHandle is what a process has of the store.
type storeHandle struct {
	*sharedStore

	dead atomic.Bool // the process was killed
}

var errDead = errors.New("the process is dead")

func (h *storeHandle) Identity(context.Context) (string, error) { return "the test's store", nil }

// update calls f with the entry of a key, which is nil if there is none.
func (h *storeHandle) update(key string, f func(e *entry)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead.Load() {
		return errDead
	}
	e := h.entries[key]
	if e != nil && time.Now().After(e.ends) {
		delete(h.entries, key)
		e = nil
	}
	f(e)
	return nil
}

func (h *storeHandle) Claim(_ context.Context, key, owner string, value []byte, lease, keep time.Duration) (found []byte, alive bool, whole time.Duration, err error) {
	err = h.update(key, func(e *entry) {
		now := time.Now()
		if e == nil || e.owner == owner && !e.settled {
			h.entries[key] = &entry{owner: owner, value: value, lease: now.Add(lease), ends: now.Add(keep)}
			return
		}
		found, alive = e.value, e.settled || now.Before(e.lease)
	})
	return found, alive, keep, err
}

func (h *storeHandle) Renew(_ context.Context, key, owner string, lease time.Duration) error {
	return h.update(key, func(e *entry) {
		if e != nil && e.owner == owner {
			e.lease = time.Now().Add(lease)
		}
	})
}

func (h *storeHandle) Put(_ context.Context, key, owner string, value []byte, keep time.Duration) error {
	return h.update(key, func(e *entry) {
		if e != nil && e.owner == owner && !e.settled {
			e.value, e.settled, e.ends = value, true, time.Now().Add(keep)
		}
	})
}

func (h *storeHandle) Drop(_ context.Context, key, owner string) error {
	return h.update(key, func(e *entry) {
		if e != nil && e.owner == owner && !e.settled {
			delete(h.entries, key)
		}
	})
}
