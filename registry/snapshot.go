// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// Snapshot returns a resolver that stores the results of r in a file. It first returns the
// instances in the file if r returns nothing for a moment, fails, or knows no instance. So a client
// can start while its registry is down or has lost its data. After that, the results of r count. An
// empty set is not stored. Several processes may share the file, because it is replaced as a whole.
// The file is read only until r has returned a result. That result is newer than the file, even if
// the file can no longer be written.
func Snapshot(path string, r discovery.Resolver) discovery.Resolver {
	return &snapshot{path: path, of: r}
}

type snapshot struct {
	path string
	of   discovery.Resolver

	mu     sync.Mutex
	latest []discovery.Instance // the last result of r; nil before the first
}

// Watch implements discovery.Resolver.
func (s *snapshot) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said := make(chan []discovery.Instance)
	failed := make(chan error, 1)
	go func() {
		failed <- safely("the Watch of a resolver", func() error {
			return s.of.Watch(ctx, func(instances []discovery.Instance) {
				select {
				case said <- instances:
				case <-ctx.Done():
				}
			})
		})
	}()
	var (
		latest []discovery.Instance // the last result that is not empty
		due    <-chan time.Time     // when to write it; nil if the file has it
	)
	take := func(instances []discovery.Instance) {
		update(instances)
		if len(instances) == 0 {
			return
		}
		latest = instances
		s.mu.Lock()
		s.latest = latest
		s.mu.Unlock()
		if due == nil {
			due = time.After(keepTime)
		}
	}
	defer func() {
		if due != nil {
			s.save(latest)
		}
	}()
	if kept := s.load(); len(kept) > 0 {
		select {
		case instances := <-said:
			if len(instances) == 0 {
				update(kept)
			}
			take(instances)
		case err := <-failed:
			update(kept)
			return err
		case <-time.After(firstTime):
			update(kept)
		case <-ctx.Done():
			return <-failed
		}
	}
	for {
		select {
		case instances := <-said:
			take(instances)
		case <-due:
			s.save(latest)
			due = nil
		case err := <-failed:
			return err
		}
	}
}

// Describe implements the optional method of discovery.Resolver.
func (s *snapshot) Describe() yodel.Description { return yodel.Description{}.Over(s.of) }

// keepTime is how long after a change the file is written. One write stores all changes of that
// time.
const keepTime = time.Second

// load returns the last result of r. Before the first result, it returns the instances in the file.
// If the file cannot be read, the client starts as it would without a snapshot.
func (s *snapshot) load() []discovery.Instance {
	s.mu.Lock()
	latest := s.latest
	s.mu.Unlock()
	if latest != nil {
		return latest
	}
	text, err := os.ReadFile(s.path)
	var kept []discovery.Instance
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	for i := range kept {
		if kept[i].Addr == "" { // the file is from another version, or is not a snapshot
			err = errors.New("an instance has no address")
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		slog.Warn("yodel: a snapshot of instances cannot be read", "path", s.path, "err", err)
		return nil
	}
	return kept
}

// save writes a temporary file and renames it to the file, so that other processes never see a part
// of it.
func (s *snapshot) save(instances []discovery.Instance) {
	if err := s.write(instances); err != nil {
		slog.Warn("yodel: a snapshot of instances cannot be kept", "path", s.path, "err", err)
	}
}

func (s *snapshot) write(instances []discovery.Instance) error {
	text, err := json.MarshalIndent(instances, "", "\t")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), s.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
