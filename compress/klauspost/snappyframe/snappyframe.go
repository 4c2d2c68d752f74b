// SPDX-License-Identifier: Apache-2.0

// Package snappyframe compresses messages in the framing format of Snappy, which HTTP calls
// "snappy". Between programs of yodel, package snappy is the same in fewer bytes. The format has no
// end mark: a message that is cut off between two of its chunks of 64 KiB appears to be whole.
package snappyframe

import (
	"io"

	"github.com/klauspost/compress/snappy"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/internal/streamed"
)

// Compressor is called "snappyframe", and "snappy" in the protocols over HTTP.
var Compressor compress.Compressor = streamed.New("snappyframe",
	func() streamed.Writer { return snappy.NewBufferedWriter(nil) },
	func() streamed.Reader { return reader{snappy.NewReader(nil)} },
)

type reader struct{ *snappy.Reader }

// Reset implements streamed.Reader.
func (r reader) Reset(src io.Reader) error {
	r.Reader.Reset(src)
	return nil
}
