// SPDX-License-Identifier: Apache-2.0

// Package zlib compresses messages in the format of RFC 1950, which HTTP calls "deflate". It uses
// only the standard library. Between programs of yodel, package flate is the same without a
// checksum.
package zlib

import (
	"compress/zlib"
	"fmt"
	"io"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/internal/streamed"
)

// Compressor is called "zlib", and "deflate" in the protocols over HTTP. It compresses at the
// default level, 6.
var Compressor = Level(zlib.DefaultCompression)

// Level returns a Compressor for a level of compress/zlib: from 1, the fastest, to 9, the smallest,
// or one of its named levels. It panics for any other level. The Compressor keeps up to 1 MB for
// each concurrent call, so create it once and not for every message.
func Level(level int) compress.Compressor {
	if _, err := zlib.NewWriterLevel(nil, level); err != nil {
		panic(fmt.Sprintf("yodel: zlib has no level %d", level))
	}
	return streamed.New("zlib", func() streamed.Writer {
		w, _ := zlib.NewWriterLevel(nil, level) // the level was checked
		return w
	}, func() streamed.Reader { return new(reader) })
}

// A reader is made when the first stream is known, because zlib reads its header then.
type reader struct{ io.ReadCloser }

// Reset implements streamed.Reader.
func (r *reader) Reset(src io.Reader) (err error) {
	if r.ReadCloser == nil {
		r.ReadCloser, err = zlib.NewReader(src)
		return err
	}
	return r.ReadCloser.(zlib.Resetter).Reset(src, nil) //nolint:forcetypeassert // NewReader says that it is one
}
