// SPDX-License-Identifier: Apache-2.0

// Package flate compresses messages with raw DEFLATE: gzip without its checksum and its 18 bytes
// around every message. It uses only the standard library. The compressors in compress/klauspost
// are faster.
package flate

import (
	"compress/flate"
	"fmt"
	"io"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/internal/streamed"
)

// Compressor compresses at the default level, 6.
var Compressor = Level(flate.DefaultCompression)

// Level returns a Compressor for a level of compress/flate: from 1, the fastest, to 9, the
// smallest, or one of its named levels. It panics for any other level. The Compressor keeps up to 1
// MB for each concurrent call, so create it once and not for every message.
func Level(level int) compress.Compressor {
	if _, err := flate.NewWriter(nil, level); err != nil {
		panic(fmt.Sprintf("yodel: flate has no level %d", level))
	}
	return streamed.New("flate", func() streamed.Writer {
		w, _ := flate.NewWriter(nil, level) // the level was checked
		return w
	}, func() streamed.Reader { return reader{flate.NewReader(nil)} })
}

type reader struct{ io.Reader }

// Reset implements streamed.Reader.
func (r reader) Reset(src io.Reader) error {
	return r.Reader.(flate.Resetter).Reset(src, nil) //nolint:forcetypeassert // NewReader says that it is one
}
