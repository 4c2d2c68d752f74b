// SPDX-License-Identifier: Apache-2.0

// Package streamed makes compressors for messages from writers and readers of compressed streams.
// It reuses them, because they take much memory.
package streamed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/internal/bounded"
)

// A Writer compresses a stream. Reset makes it write another stream to dst.
type Writer interface {
	io.WriteCloser
	Reset(dst io.Writer)
}

// A Reader decompresses a stream. Reset makes it read another stream from src.
type Reader interface {
	io.Reader
	Reset(src io.Reader) error
}

// New returns a Compressor with this name. NewWriter and newReader return what it reuses; they are
// called concurrently.
func New(name string, newWriter func() Writer, newReader func() Reader) compress.Compressor {
	return &compressor{name: name, newWriter: newWriter, newReader: newReader}
}

type compressor struct {
	name      string
	newWriter func() Writer
	newReader func() Reader
	writers   sync.Pool // of *writer
	readers   sync.Pool // of *reader
}

type writer struct {
	Writer
	dst bytes.Buffer
}

type reader struct {
	Reader
	src bytes.Reader
}

func (c *compressor) Name() string { return c.name }

func (c *compressor) Append(dst, src []byte) ([]byte, error) {
	w, ok := c.writers.Get().(*writer)
	if !ok {
		w = &writer{Writer: c.newWriter()}
	}
	defer func() {
		w.dst = bytes.Buffer{}
		c.writers.Put(w)
	}()
	w.dst = *bytes.NewBuffer(dst)
	w.Reset(&w.dst)
	if _, err := w.Write(src); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return w.dst.Bytes(), nil
}

func (c *compressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	r, ok := c.readers.Get().(*reader)
	if !ok {
		r = &reader{Reader: c.newReader()}
	}
	defer func() {
		r.src.Reset(nil)
		c.readers.Put(r)
	}()
	r.src.Reset(src)
	if err := r.Reset(&r.src); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	b, err := bounded.Append(dst, r, limit)
	if err == nil && r.src.Len() > 0 {
		err = errors.New("bytes behind the end")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return b, nil
}
