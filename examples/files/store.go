// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A store is a folder that is served.
type store struct {
	root  *os.Root
	limit int64 // the largest file that is taken, in bytes; 0 is any

	mu      sync.Mutex
	uploads []*upload // that are open
}

// An upload is one that is open.
type upload struct {
	part  *part
	ended chan struct{} // closed when it is not open any more
}

// patience is how long an upload waits for another one of the same file: one that was interrupted
// may take a moment to end.
const patience = time.Second

// newServer returns a server for the folder.
func newServer(root *os.Root, limit int64) *yodel.Server {
	s := &store{root: root, limit: limit}
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
	u, err := s.begin(ctx, t.Name)
	if err != nil {
		return nil, err
	}
	defer s.end(u)
	p := u.part
	if p.info.Size() < t.Offset {
		return nil, otherPrefix(t)
	}
	sum, err := p.keep(ctx, t.Offset)
	if err != nil {
		return nil, err
	}
	if t.Offset > 0 && !bytes.Equal(sum, t.Prefix) {
		return nil, otherPrefix(t)
	}
	return new([]byte), p.receive(recv, t.Size, func(int64) error { return draining(ctx) })
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

// otherPrefix is the answer to a caller who has, or thinks that the server has, the beginning of
// another file.
func otherPrefix(t *Transfer) error {
	return yodel.Errorf(yodel.Aborted, "what there is of %q is not its first %d bytes: begin at 0", t.Name, t.Offset)
}

// draining ends a transfer when the server shuts down: it can be gone on with when the server is
// back.
func draining(ctx context.Context) error {
	select {
	case <-yodel.CallFrom(ctx).Draining():
		return yodel.Errorf(yodel.Unavailable, "the server is shutting down")
	default:
		return nil
	}
}

// begin begins an upload, and refuses it while there is another one of the same file.
func (s *store) begin(ctx context.Context, name string) (*upload, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		u, other, err := s.tryBegin(name)
		if other == nil {
			return u, err
		}
		select {
		case <-other.ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late.C:
			return nil, yodel.Errorf(yodel.FailedPrecondition, "%q is being uploaded by somebody else: try again when that has ended", name)
		}
	}
}

// tryBegin returns the upload, or the other one that is in its way. It opens the part with the lock
// held: whoever ends an upload has given the part its final name before.
func (s *store) tryBegin(name string) (u, other *upload, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := openPart(s.root, name)
	if err != nil {
		return nil, nil, err
	}
	for _, other := range s.uploads {
		if os.SameFile(other.part.info, p.info) { // by whatever name or link it was reached
			p.file.Close()
			return nil, other, nil
		}
	}
	u = &upload{part: p, ended: make(chan struct{})}
	s.uploads = append(s.uploads, u)
	return u, nil, nil
}

func (s *store) end(u *upload) {
	u.part.file.Close()
	s.mu.Lock()
	s.uploads = slices.DeleteFunc(s.uploads, func(other *upload) bool { return other == u })
	s.mu.Unlock()
	close(u.ended)
}
