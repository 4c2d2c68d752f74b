// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
)

// region contract

// The service. The streams carry the file from Transfer.Offset to Transfer.Size as raw bytes, in
// messages of any size, and then, as the last message, the SHA-256 of the whole file.
const (
	// Stat says what there is of a file.
	Stat yodel.Method[string, Info] = "Files.Stat"
	// Put stores a file.
	Put yodel.Upload[[]byte, []byte] = "Files.Put"
	// Get fetches a file.
	Get yodel.Feed[[]byte, []byte] = "Files.Get"
)

// endregion contract

// Info is what a server has of a file.
type Info struct {
	Size int64 `json:"size"` // in bytes, or -1 if it does not exist
	Part int64 `json:"part"` // how much an upload has left that did not come to its end
}

// A Transfer is what the two sides of a stream agree on before its first byte. It travels in the
// metadata of the call.
type Transfer struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`   // of the whole file
	Offset int64  `json:"offset"` // where the stream begins
	Prefix []byte `json:"prefix"` // SHA-256 of what stands before that, which both sides have
}

const (
	// chunkSize is how much of a file is in memory, on each side and for each transfer, beside the
	// window of the stream.
	chunkSize = 64 << 10
	// partSuffix marks a file that is not complete.
	partSuffix = ".part"
	// transferKey is where the metadata has the Transfer.
	transferKey = "transfer"
)

// call returns a call that carries the transfer.
func (t *Transfer) call() (*yodel.Call, error) {
	text, err := json.Marshal(t)
	return &yodel.Call{Codec: raw.Codec, Metadata: yodel.Metadata{transferKey: string(text)}}, err
}

// transferFrom returns the transfer that a handler was called for.
func transferFrom(ctx context.Context) (*Transfer, error) {
	t := new(Transfer)
	if err := json.Unmarshal([]byte(yodel.CallFrom(ctx).Metadata[transferKey]), t); err != nil {
		return nil, yodel.Errorf(yodel.InvalidArgument, "the metadata has no %s: %w", transferKey, err)
	}
	if t.Offset < 0 || t.Offset > t.Size {
		return nil, yodel.Errorf(yodel.InvalidArgument, "the transfer of %q cannot begin at %d of %d bytes", t.Name, t.Offset, t.Size)
	}
	return t, checkName(t.Name)
}

// checkName says clearly what is wrong with a name. That no name leaves the folder, by whatever
// links, os.Root sees to.
func checkName(name string) error {
	switch {
	case !filepath.IsLocal(name) || filepath.Clean(name) != name || name == ".":
		return yodel.Errorf(yodel.InvalidArgument, "%q is not the name of a file in the folder", name)
	case strings.HasSuffix(name, partSuffix):
		return yodel.Errorf(yodel.InvalidArgument, "%q: names that end in %s are for files on their way", name, partSuffix)
	case !utf8.ValidString(name):
		return yodel.Errorf(yodel.InvalidArgument, "%q is not UTF-8", name)
	}
	return nil
}
