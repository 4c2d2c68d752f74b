// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/yodel-rpc/yodel"
)

// A progress is told how far a transfer has come, first where it begins, and how large the file is,
// in bytes.
type progress func(at, size int64)

// put sends a file to the server, where it gets the name that it has here, and goes on where an
// earlier transfer has ended.
func put(ctx context.Context, c yodel.Caller, path string, report progress) error {
	name := filepath.Base(path)
	if err := checkName(name); err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := openSource(root, name)
	if err != nil {
		return err
	}
	defer f.file.Close()
	info, err := Stat.Call(ctx, c, &name)
	if err != nil {
		return err
	}
	return fromOffset(info.Part, f.size, func(offset int64) error { return putFrom(ctx, c, f, name, offset, report) })
}

func putFrom(ctx context.Context, c yodel.Caller, f *source, name string, offset int64, report progress) error {
	sum, err := f.skip(ctx, offset)
	if err != nil {
		return err
	}
	call, err := (&Transfer{Name: name, Size: f.size, Offset: offset, Prefix: sum}).call()
	if err != nil {
		return err
	}
	_, err = Put.Do(ctx, c, call, func(send yodel.Send[[]byte]) error {
		report(offset, f.size)
		return f.send(ctx, send, func(at int64) { report(at, f.size) })
	})
	return err
}

// get fetches a file, and goes on where an earlier transfer into the same file has ended.
func get(ctx context.Context, c yodel.Caller, name, path string, report progress) error {
	info, err := Stat.Call(ctx, c, &name)
	if err != nil {
		return err
	}
	if info.Size < 0 {
		return yodel.Errorf(yodel.NotFound, "the server has no file %q", name)
	}
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer root.Close()
	p, err := openPart(root, filepath.Base(path))
	if err != nil {
		return err
	}
	defer p.file.Close()
	return fromOffset(p.info.Size(), info.Size, func(offset int64) error { return getFrom(ctx, c, p, name, info.Size, offset, report) })
}

func getFrom(ctx context.Context, c yodel.Caller, p *part, name string, size, offset int64, report progress) error {
	sum, err := p.keep(ctx, offset)
	if err != nil {
		return err
	}
	call, err := (&Transfer{Name: name, Size: size, Offset: offset, Prefix: sum}).call()
	if err != nil {
		return err
	}
	first := true
	return p.receive(Get.Do(ctx, c, call, new([]byte)), size, func(at int64) error {
		if first {
			first = false
			report(offset, size)
		}
		report(at, size)
		return nil
	})
}

// fromOffset makes a transfer that begins behind what there is, or, if that is of another file, at
// 0.
func fromOffset(have, size int64, transfer func(offset int64) error) error {
	if have > size {
		have = 0
	}
	err := transfer(have)
	if have > 0 && errors.Is(err, yodel.Aborted) {
		err = transfer(0)
	}
	return err
}
