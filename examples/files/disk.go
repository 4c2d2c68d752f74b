// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/yodel-rpc/yodel"
)

// A source is a file that is being sent.
type source struct {
	file *os.File
	size int64
	at   int64     // how far it has been read
	hash hash.Hash // of that
}

// openSource opens a file to be sent.
func openSource(root *os.Root, name string) (*source, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, diskError(err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = diskError(err)
	case !info.Mode().IsRegular():
		err = irregular(name)
	default:
		return &source{file: f, size: info.Size(), hash: sha256.New()}, nil
	}
	f.Close()
	return nil, err
}

// skip goes to offset, where the stream is to begin, and returns the hash of what stands before.
func (s *source) skip(ctx context.Context, offset int64) ([]byte, error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, diskError(err)
	}
	s.at = 0
	s.hash.Reset()
	err := hashed(ctx, s.file, s.hash, offset, func(n []byte) error {
		s.at += int64(len(n))
		return nil
	})
	return s.hash.Sum(nil), err
}

// send sends the rest of the file, and the hash of all of it.
func (s *source) send(ctx context.Context, send yodel.Send[[]byte], progress func(at int64)) error {
	err := hashed(ctx, s.file, s.hash, s.size-s.at, func(chunk []byte) error {
		if err := send(&chunk); err != nil {
			return err
		}
		s.at += int64(len(chunk))
		progress(s.at)
		return nil
	})
	if err != nil {
		return err
	}
	sum := s.hash.Sum(nil)
	return send(&sum)
}

// A part is a file that is being received: NAME.part until it is complete, then NAME.
type part struct {
	root *os.Root
	name string
	file *os.File
	info os.FileInfo // of the file when it was opened
	at   int64       // how much of it is good
	hash hash.Hash   // of that
}

// openPart opens what there is of a file, or makes an empty one.
func openPart(root *os.Root, name string) (*part, error) {
	if old, err := root.Lstat(name); err == nil && !old.Mode().IsRegular() {
		return nil, irregular(name)
	}
	f, err := root.OpenFile(name+partSuffix, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, diskError(err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, diskError(err)
	}
	return &part{root: root, name: name, file: f, info: info, hash: sha256.New()}, nil
}

// keep drops what stands behind the first n bytes, and returns their hash.
func (p *part) keep(ctx context.Context, n int64) ([]byte, error) {
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return nil, diskError(err)
	}
	p.hash.Reset()
	if err := hashed(ctx, p.file, p.hash, n, func([]byte) error { return nil }); err != nil {
		return nil, err
	}
	p.at = n
	return p.hash.Sum(nil), diskError(p.file.Truncate(n))
}

// receive appends what comes until the file has size bytes, and puts it in its place if its hash is the sender's.
// After an error it can be gone on with later.
func (p *part) receive(recv yodel.Recv[[]byte], size int64, progress func(at int64) error) error {
	var sum []byte
	for chunk, err := range recv {
		switch {
		case err != nil:
			return err
		case sum != nil || p.at < size && int64(len(*chunk)) > size-p.at:
			return yodel.Errorf(yodel.DataLoss, "more came of %q than the %d bytes it was to have", p.name, size)
		case p.at == size:
			sum = *chunk
			continue
		}
		if _, err := p.file.Write(*chunk); err != nil {
			return diskError(err)
		}
		p.hash.Write(*chunk)
		p.at += int64(len(*chunk))
		if err := progress(p.at); err != nil {
			return err
		}
	}
	if !bytes.Equal(sum, p.hash.Sum(nil)) {
		return yodel.Errorf(yodel.DataLoss, "the SHA-256 of the %d bytes of %q is not what its sender says", p.at, p.name)
	}
	return p.finish()
}

// finish gives the file its name, once it is certain to survive a crash of the machine.
func (p *part) finish() error {
	if err := p.file.Sync(); err != nil {
		return diskError(err)
	}
	if err := p.file.Close(); err != nil {
		return diskError(err)
	}
	if err := p.root.Rename(p.name+partSuffix, p.name); err != nil {
		return diskError(err)
	}
	if runtime.GOOS == "windows" { // where folders cannot be synced
		return nil
	}
	folder, err := p.root.Open(filepath.Dir(p.name))
	if err != nil {
		return diskError(err)
	}
	defer folder.Close()
	return diskError(folder.Sync())
}

// hashed reads n bytes of a file, a chunk at a time, and hands them to each and to the hash.
func hashed(ctx context.Context, f *os.File, h hash.Hash, n int64, each func(chunk []byte) error) error {
	buf := make([]byte, min(n, chunkSize))
	for n > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		chunk := buf[:min(n, chunkSize)]
		if _, err := io.ReadFull(f, chunk); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return yodel.Errorf(yodel.FailedPrecondition, "%q has become shorter meanwhile", filepath.Base(f.Name()))
		} else if err != nil {
			return diskError(err)
		}
		h.Write(chunk)
		if err := each(chunk); err != nil {
			return err
		}
		n -= int64(len(chunk))
	}
	return nil
}

func irregular(name string) error {
	return yodel.Errorf(yodel.InvalidArgument, "%q is not a regular file", name)
}

// diskError gives an error of the file system the code that the other side should see.
func diskError(err error) error {
	var code yodel.Code
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		code = yodel.NotFound
	case errors.Is(err, fs.ErrPermission):
		code = yodel.PermissionDenied
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = yodel.ResourceExhausted
	default:
		code = yodel.Internal
	}
	return yodel.Errorf(code, "%w", err)
}
