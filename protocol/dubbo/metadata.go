// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/internal/callfields"
	"github.com/yodel-rpc/yodel/protocol/internal/httpkeys"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// Keys of attachments that Dubbo gives a meaning.
const (
	keyPath      = "path"
	keyInterface = "interface"
	keyDubbo     = "dubbo" // the version of the protocol
	keyTimeout   = "timeout"
	keyVersion   = "version" // of the interface
	keyGroup     = "group"
)

// keys are those of yodel's fields that protocols name differently.
var keys = callfields.Keys{Timeout: keyTimeout, Attempt: "yodel-attempt"}

// obstacle returns why Dubbo cannot carry a pair of metadata, or "".
func obstacle(key, value string) string {
	switch {
	case reserved(key):
		return "the key is reserved in Dubbo"
	case !utf8.ValidString(key):
		return "the key is not UTF-8"
	case !utf8.ValidString(value):
		return "the value is not UTF-8"
	}
	return ""
}

// reserved reports whether a key is one that this package sets, so that it is not metadata of a
// caller or a handler.
func reserved(key string) bool {
	switch key {
	case keyPath, keyInterface, keyDubbo, keyTimeout:
		return true
	}
	return metakeys.Reserved(key)
}

// maxAttachments is how many bytes encoded attachments may have, so that decoding them takes little
// memory: twice the limit of the metadata, and room for the beginnings of the values.
func maxAttachments(limits yodel.Limits) int { return 2*limits.MaxMetadata + 16*limits.MaxPairs }

// describe sets the fields of a call from the attachments of a request. A deadline counts from now.
func describe(call *yodel.Call, attachments any, now time.Time, limits yodel.Limits) *yodel.Error {
	pairs, err := texts(attachments)
	if err != nil {
		return linkerror.Refused(yodel.InvalidArgument, "YDL2101", "%s: %v", call.Method, err)
	}
	size := 0
	for key, value := range pairs {
		size += len(key) + len(value)
	}
	if size > limits.MaxMetadata || len(pairs) > limits.MaxPairs {
		return linkerror.Refused(yodel.ResourceExhausted, "YDL2203", "%s: the attachments have %d bytes in %d pairs; the server's limits are %d and %d",
			call.Method, size, len(pairs), limits.MaxMetadata, limits.MaxPairs)
	}
	for key, value := range pairs {
		if control(call, key, value, now) {
			continue
		}
		if call.Metadata == nil {
			call.Metadata = make(yodel.Metadata, len(pairs))
		}
		call.Metadata[key] = value
	}
	httpkeys.Read(call)
	return nil
}

// texts returns attachments as texts.
func texts(attachments any) (map[string]string, error) {
	if attachments == nil {
		return nil, nil //nolint:nilnil // there is none, which is not an error
	}
	all, ok := attachments.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the attachments are a %T, not a map with strings as keys", attachments)
	}
	pairs := make(map[string]string, len(all))
	for key, value := range all {
		switch value := value.(type) {
		case nil:
		case string:
			pairs[key] = value
		case bool, int32, int64, float64:
			pairs[key] = fmt.Sprint(value)
		default:
			return nil, fmt.Errorf("the attachment %.100q is a %T, and metadata has only texts", key, value)
		}
	}
	return pairs, nil
}

// control sets the field of a call for which a key stands. It reports false if the key belongs into
// the metadata of the call.
func control(call *yodel.Call, key, value string, now time.Time) bool {
	switch key {
	case keyPath, keyInterface, keyDubbo: // other parts of the request have them
	case keyTimeout:
		if left, ok := callfields.Millis(value); ok && left > 0 {
			call.Deadline = now.Add(left)
		}
	default:
		return keys.Read(call, key, value)
	}
	return true
}

// requestPairs returns the attachments of a request to an instance. It fails if the caller has set
// a reserved key, or if the result exceeds the limits.
func requestPairs(ctx context.Context, call *yodel.Call, in discovery.Instance, limits yodel.Limits) ([][2]string, *yodel.Error) {
	service, _ := split(call.Method)
	own := [][2]string{{keyPath, service}, {keyInterface, service}, {keyVersion, in.Version}, {keyGroup, in.Group}}
	pairs, e := callfields.Request(ctx, call, keys, own, obstacle)
	if e != nil {
		return nil, e
	}
	if n := sizeOf(pairs); n > limits.MaxMetadata || len(pairs) > limits.MaxPairs {
		return nil, linkerror.LargeMetadata(call, n, len(pairs), limits)
	}
	return pairs, nil
}
