// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A store is a folder that is served.
type store struct {
	root  *os.Root
	limit int64 // the largest file that is taken, in bytes; 0 is any

	mu   sync.Mutex
	open map[string]chan struct{} // the uploads that are open, by name; closed with the upload
}

// patience is how long an upload waits for another one of the same name: one that was interrupted may take a moment to end.
const patience = time.Second

// newServer returns a server for the folder.
func newServer(root *os.Root, limit int64) *yodel.Server {
	s := &store{root: root, limit: limit, open: make(map[string]chan struct{})}
	server := yodel.NewServer(&yodel.ServerOptions{
		DrainTimeout: 2 * time.Second, // nothing is lost when a transfer is cut off
	})
	Stat.Handle(server, s.stat)
	Put.Handle(server, s.put)
	Get.Handle(server, s.get)
	server.MarkIdempotent(string(Stat))
	server.MarkConcurrent(string(Stat), string(Put), string(Get)) // disks are slow at times
	return server
}

func (s *store) stat(_ context.Context, name *string) (*Info, error) {
	if err := checkName(*name); err != nil {
		return nil, err
	}
	info := &Info{Size: -1}
	for file, size := range map[string]*int64{*name: &info.Size, *name + partSuffix: &info.Part} {
		switch f, err := s.root.Stat(file); {
		case err == nil && f.Mode().IsRegular():
			*size = f.Size()
		case err == nil:
			return nil, irregular(file)
		case !errors.Is(err, os.ErrNotExist):
			return nil, diskError(err)
		}
	}
	return info, nil
}

func (s *store) put(ctx context.Context, recv yodel.Recv[[]byte]) (*[]byte, error) {
	t, err := transferFrom(ctx)
	if err != nil {
		return nil, err
	}
	if s.limit > 0 && t.Size > s.limit {
		return nil, yodel.Errorf(yodel.ResourceExhausted, "%q has %d bytes, this server takes files of at most %d", t.Name, t.Size, s.limit)
	}
	unlock, err := s.lock(ctx, t.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := openPart(s.root, t.Name)
	if err != nil {
		return nil, err
	}
	defer p.file.Close()
	if p.size < t.Offset {
		return nil, otherPrefix(t)
	}
	sum, err := p.keep(ctx, t.Offset)
	if err != nil {
		return nil, err
	}
	if t.Offset > 0 && !bytes.Equal(sum, t.Prefix) {
		return nil, otherPrefix(t)
	}
	return nil, p.receive(recv, t.Size, func(int64) error { return draining(ctx) })
}

func (s *store) get(ctx context.Context, _ *[]byte, send yodel.Send[[]byte]) error {
	t, err := transferFrom(ctx)
	if err != nil {
		return err
	}
	f, err := openSource(s.root, t.Name)
	if err != nil {
		return err
	}
	defer f.file.Close()
	if f.size != t.Size {
		return yodel.Errorf(yodel.Aborted, "%q has %d bytes now, and had %d", t.Name, f.size, t.Size)
	}
	sum, err := f.skip(ctx, t.Offset)
	if err != nil {
		return err
	}
	if t.Offset > 0 && !bytes.Equal(sum, t.Prefix) {
		return otherPrefix(t)
	}
	return f.send(ctx, func(chunk *[]byte) error {
		if err := draining(ctx); err != nil {
			return err
		}
		return send(chunk)
	}, func(int64) {})
}

// otherPrefix is the answer to a caller who has, or thinks that the server has, the beginning of another file.
func otherPrefix(t *Transfer) error {
	return yodel.Errorf(yodel.Aborted, "what there is of %q is not its first %d bytes: begin at 0", t.Name, t.Offset)
}

// draining ends a transfer when the server shuts down: it can be gone on with when the server is back.
func draining(ctx context.Context) error {
	select {
	case <-yodel.CallFrom(ctx).Draining():
		return yodel.Errorf(yodel.Unavailable, "the server is shutting down")
	default:
		return nil
	}
}

// lock begins an upload, and refuses it while there is another one of the name.
func (s *store) lock(ctx context.Context, name string) (unlock func(), err error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		s.mu.Lock()
		other := s.open[name]
		if other == nil {
			ended := make(chan struct{})
			s.open[name] = ended
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.open, name)
				s.mu.Unlock()
				close(ended)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late.C:
			return nil, yodel.Errorf(yodel.FailedPrecondition, "%q is being uploaded by somebody else: try again when that has ended", name)
		}
	}
}
