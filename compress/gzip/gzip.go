// SPDX-License-Identifier: Apache-2.0

// Package gzip compresses messages with gzip, which every peer supports. It uses only the standard
// library. The compressors in compress/klauspost are faster.
package gzip

import (
	"compress/gzip"
	"fmt"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/internal/streamed"
)

// Compressor compresses at the default level, 6.
var Compressor = Level(gzip.DefaultCompression)

// Level returns a Compressor for a level of compress/gzip: from 1, the fastest, to 9, the smallest,
// or one of its named levels. It panics for any other level. The Compressor keeps up to 1 MB for
// each concurrent call, so create it once and not for every message.
func Level(level int) compress.Compressor {
	if _, err := gzip.NewWriterLevel(nil, level); err != nil {
		panic(fmt.Sprintf("yodel: gzip has no level %d", level))
	}
	return streamed.New("gzip", func() streamed.Writer {
		w, _ := gzip.NewWriterLevel(nil, level) // the level was checked
		return w
	}, func() streamed.Reader { return new(gzip.Reader) })
}
