// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// failing is a resolver that always fails.
type failing struct{ times int }

func (f *failing) Watch(context.Context, func([]discovery.Instance)) error {
	f.times++
	return errSpeaker
}

// A shelf is a resolver of what stands on it.
type shelf struct {
	mu      sync.Mutex
	there   []discovery.Instance
	changed chan struct{}
	failed  bool
}

func newShelf() *shelf { return &shelf{changed: make(chan struct{})} }

func (s *shelf) set(instances []discovery.Instance) { s.change(func() { s.there = instances }) }

func (s *shelf) fail() { s.change(func() { s.failed = true }) }

func (s *shelf) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *shelf) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		there, changed, failed := s.there, s.changed, s.failed
		s.mu.Unlock()
		if failed {
			return errSpeaker
		}
		update(there)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

func TestSnapshotKeepsTheContract(t *testing.T) {
	s := newShelf()
	yodeltest.TestResolver(t, registry.Snapshot(filepath.Join(t.TempDir(), "instances"), s), s.set, s.fail)
}

// kept returns what a snapshot holds; nil is no file.
func kept(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must(t, err)
	var instances []discovery.Instance
	must(t, json.Unmarshal(text, &instances))
	return addresses(instances)
}

func wantKept(t *testing.T, path string, want ...string) {
	t.Helper()
	if got := kept(t, path); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the snapshot holds %q, want %q", got, want)
	}
}

// snapshotOf writes a snapshot.
func snapshotOf(t *testing.T, addrs ...string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "instances.json")
	text, err := json.Marshal(at(addrs...))
	must(t, err)
	must(t, os.WriteFile(path, text, 0o600))
	return path
}

func TestSnapshotStartsWithoutARegistry(t *testing.T) {
	path := snapshotOf(t, "1", "2")
	synctest.Test(t, func(t *testing.T) {
		silent := newSpeaker()
		l := listen(t, registry.Snapshot(path, silent))
		time.Sleep(499 * time.Millisecond)
		wantHeard(t, l, nil)
		time.Sleep(2 * time.Millisecond)
		wantHeard(t, l, sets{{"1", "2"}})
		silent.say <- at("3")
		settle()
		wantHeard(t, l, sets{{"3"}})
		must(t, l.stop())

		l = listen(t, registry.Snapshot(path, &failing{}))
		if err := <-l.ended; !errors.Is(err, errSpeaker) {
			t.Errorf("got %v, want the error of the registry", err)
		}
		wantHeard(t, l, sets{{"3"}})
	})
}

// A client whose registry fails for a moment keeps what it heard, whatever the file says: it may be
// of last week if the disk is full, or of another process that knows less.
func TestSnapshotIsForAStartAlone(t *testing.T) {
	path := snapshotOf(t, "old")
	synctest.Test(t, func(t *testing.T) {
		s, f := newSpeaker(), snapshotOf(t, "old")
		r := registry.Snapshot(path, s)
		s.say <- at("1", "2")
		l := listen(t, r)
		settle()
		wantHeard(t, l, sets{{"1", "2"}})
		s.fail <- errSpeaker
		<-l.ended
		must(t, os.Rename(f, path))
		l = listen(t, r)
		settle()
		wantHeard(t, l, sets{{"1", "2"}})
		must(t, l.stop())
	})
}

func TestSnapshotOfARegistryThatLostItsMemory(t *testing.T) {
	path := snapshotOf(t, "1")
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker()
		s.say <- nil
		l := listen(t, registry.Snapshot(path, s))
		settle()
		wantHeard(t, l, sets{{"1"}, {}}) // a client doubts the second, and keeps who answers
		wantKept(t, path, "1")
		must(t, l.stop())
		wantKept(t, path, "1")
	})
}

func TestSnapshotSaysNothingOfAnAnswerInTime(t *testing.T) {
	path := snapshotOf(t, "1")
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker()
		s.say <- at("2")
		l := listen(t, registry.Snapshot(path, s))
		settle()
		wantHeard(t, l, sets{{"2"}})
		must(t, l.stop())
		wantKept(t, path, "2")
	})
}

func TestSnapshotsThatCannotBeRead(t *testing.T) {
	for name, text := range map[string]string{"broken": "[{", "another form": `{"addr":"1"}`, "empty": "", "of nobody": "[]", "without addresses": `[{"address":"1"},{}]`} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "instances")
			must(t, os.WriteFile(path, []byte(text), 0o600))
			synctest.Test(t, func(t *testing.T) {
				s := newSpeaker()
				l := listen(t, registry.Snapshot(path, s))
				settle()
				wantHeard(t, l, nil)
				s.say <- at("1")
				settle()
				wantHeard(t, l, sets{{"1"}})
				must(t, l.stop())
				wantKept(t, path, "1")
			})
		})
	}
}

func TestSnapshotThatCannotBeWrittenHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker()
		l := listen(t, registry.Snapshot(filepath.Join(t.TempDir(), "none", "instances"), s))
		for _, addr := range []string{"1", "2"} {
			s.say <- at(addr)
			time.Sleep(5 * time.Second)
			wantHeard(t, l, sets{{addr}})
		}
		must(t, l.stop())
	})
}

func TestSnapshotIsWrittenOnceForManyChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "instances")
	synctest.Test(t, func(t *testing.T) {
		s := newSpeaker()
		l := listen(t, registry.Snapshot(path, s))
		written := map[string]bool{}
		for i := range 300 { // in 3 s
			s.say <- at(fmt.Sprint(i))
			time.Sleep(10 * time.Millisecond)
			written[fmt.Sprint(kept(t, path))] = true
		}
		if len(written) < 3 || len(written) > 4 { // nothing, and once a second
			t.Errorf("it was written so: %v", written)
		}
		must(t, l.stop())
		wantKept(t, path, "299") // what was due is kept at the end
	})
}

func TestSnapshotOfSeveralProcessesIsAlwaysWhole(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "instances")
	var writers, reader sync.WaitGroup
	for n := range 4 { // each with a set of another size
		writers.Go(func() {
			for range 25 {
				s := newSpeaker()
				s.say <- at(make([]string, 1+100*n)...)
				ctx, cancel := context.WithCancel(context.Background())
				if err := registry.Snapshot(path, s).Watch(ctx, func([]discovery.Instance) { cancel() }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	reader.Go(func() {
		for {
			text, err := os.ReadFile(path)
			var instances []discovery.Instance
			if err == nil {
				err = json.Unmarshal(text, &instances)
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%v, of %d bytes", err, len(text))
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	writers.Wait()
	close(done)
	reader.Wait()
	entries, err := os.ReadDir(folder)
	must(t, err)
	if len(entries) != 1 || len(kept(t, path))%100 != 1 {
		t.Errorf("the folder holds %v", entries)
	}
}
