// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/yodel-rpc/yodel"
)

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

// receive appends what comes until the file has size bytes, and puts it in its place if its hash is
// the sender's. After an error it can be gone on with later.
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
	if sum == nil {
		return yodel.Errorf(yodel.DataLoss, "the stream of %q ended after %d of %d bytes", p.name, p.at, size)
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
