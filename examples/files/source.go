// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"
	"path/filepath"

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
