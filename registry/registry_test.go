// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A speaker is a resolver that says what it is told to say. What it is told while nobody watches
// waits.
type speaker struct {
	say  chan []discovery.Instance
	fail chan error
}

func newSpeaker() *speaker {
	return &speaker{say: make(chan []discovery.Instance, 1000), fail: make(chan error, 10)}
}

var errSpeaker = errors.New("the registry failed")

func (s *speaker) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		select {
		case instances := <-s.say:
			update(instances)
			continue
		default:
		}
		select {
		case instances := <-s.say:
			update(instances)
		case err := <-s.fail:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// A listener is a Watch and what it said.
type listener struct {
	cancel context.CancelFunc
	ended  chan error

	mu   sync.Mutex
	said [][]discovery.Instance
}

func listen(t *testing.T, r discovery.Resolver) *listener {
	ctx, cancel := context.WithCancel(t.Context())
	l := &listener{cancel: cancel, ended: make(chan error, 1)}
	go func() {
		l.ended <- r.Watch(ctx, func(instances []discovery.Instance) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.said = append(l.said, slices.Clone(instances))
		})
	}()
	return l
}

// heard returns what was said so far, and forgets it.
func (l *listener) heard() (said [][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, instances := range l.said {
		said = append(said, addresses(instances))
	}
	l.said = nil
	return said
}

func (l *listener) stop() error {
	l.cancel()
	return <-l.ended
}

func addresses(instances []discovery.Instance) []string {
	addrs := []string{}
	for _, in := range instances {
		addrs = append(addrs, in.Addr)
	}
	return addrs
}

func at(addrs ...string) []discovery.Instance {
	instances := make([]discovery.Instance, 0, len(addrs))
	for _, addr := range addrs {
		instances = append(instances, discovery.Instance{Addr: addr})
	}
	return instances
}

// sets is what heard is compared with.
type sets [][]string

func wantHeard(t *testing.T, l *listener, want sets) {
	t.Helper()
	if got := l.heard(); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("it said %q, want %q", got, want)
	}
}

func TestARegistryNamesItself(t *testing.T) {
	if got := memory.New(nil).String(); got != "this process's memory" {
		t.Errorf("got %q", got)
	}
	folder := t.TempDir()
	if got, want := file.New(folder, nil).String(), "the folder "+folder; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
