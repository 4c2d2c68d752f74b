// SPDX-License-Identifier: Apache-2.0

// Package gzip compresses messages with gzip, which every peer supports. It uses only the standard
// library. The compressors in compress/klauspost are faster.
package gzip

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress/internal/bounded"
)

// Compressor compresses at the default level, 6.
var Compressor = Level(gzip.DefaultCompression)

// Level returns a Compressor for a level of compress/gzip: from 1, the fastest, to 9, the smallest,
// or one of its named levels. It panics for any other level. The Compressor keeps up to 1 MB for
// each concurrent call, so create it once and not for every message.
func Level(level int) yodel.Compressor {
	if _, err := gzip.NewWriterLevel(nil, level); err != nil {
		panic(fmt.Sprintf("yodel: gzip has no level %d", level))
	}
	return &compressor{level: level}
}

type compressor struct {
	level   int
	writers sync.Pool // of *writer
	readers sync.Pool // of *reader
}

type writer struct {
	*gzip.Writer
	dst bytes.Buffer
}

type reader struct {
	gzip.Reader
	src bytes.Reader
}

func (*compressor) Name() string { return "gzip" }

func (c *compressor) Append(dst, src []byte) ([]byte, error) {
	w, ok := c.writers.Get().(*writer)
	if !ok {
		fresh, err := gzip.NewWriterLevel(nil, c.level)
		if err != nil {
			return nil, err
		}
		w = &writer{Writer: fresh}
	}
	defer func() {
		w.dst = bytes.Buffer{}
		c.writers.Put(w)
	}()
	w.dst = *bytes.NewBuffer(dst)
	w.Reset(&w.dst)
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return w.dst.Bytes(), nil
}

func (c *compressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	r, ok := c.readers.Get().(*reader)
	if !ok {
		r = new(reader)
	}
	defer func() {
		r.src.Reset(nil)
		c.readers.Put(r)
	}()
	r.src.Reset(src)
	if err := r.Reset(&r.src); err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	b, err := bounded.Append(dst, r, limit)
	if err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	return b, nil
}
