// SPDX-License-Identifier: Apache-2.0

// Package flate compresses messages with raw DEFLATE: gzip without its checksum and its 18 bytes
// around every message. It uses only the standard library. The compressors in compress/klauspost
// are faster.
package flate

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress/internal/bounded"
)

// Compressor compresses at the default level, 6.
var Compressor = Level(flate.DefaultCompression)

// Level returns a Compressor for a level of compress/flate: from 1, the fastest, to 9, the
// smallest, or one of its named levels. It panics for any other level. The Compressor keeps up to 1
// MB for each concurrent call, so create it once and not for every message.
func Level(level int) yodel.Compressor {
	if _, err := flate.NewWriter(nil, level); err != nil {
		panic(fmt.Sprintf("yodel: flate has no level %d", level))
	}
	return &compressor{level: level}
}

type compressor struct {
	level   int
	writers sync.Pool // of *writer
	readers sync.Pool // of *reader
}

type writer struct {
	*flate.Writer
	dst bytes.Buffer
}

type reader struct {
	io.Reader
	flate.Resetter
	src bytes.Reader
}

func (*compressor) Name() string { return "flate" }

func (c *compressor) Append(dst, src []byte) ([]byte, error) {
	w, ok := c.writers.Get().(*writer)
	if !ok {
		fresh, err := flate.NewWriter(nil, c.level)
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
		r.Reader = flate.NewReader(&r.src)
		r.Resetter = r.Reader.(flate.Resetter) //nolint:forcetypeassert // NewReader says that it is one
	}
	defer func() {
		r.src.Reset(nil)
		c.readers.Put(r)
	}()
	r.src.Reset(src)
	if err := r.Reset(&r.src, nil); err != nil {
		return nil, fmt.Errorf("flate: %w", err)
	}
	b, err := bounded.Append(dst, r, limit)
	if err == nil && r.src.Len() > 0 {
		err = errors.New("bytes behind the end")
	}
	if err != nil {
		return nil, fmt.Errorf("flate: %w", err)
	}
	return b, nil
}
