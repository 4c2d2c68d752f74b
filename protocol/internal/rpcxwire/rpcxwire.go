// SPDX-License-Identifier: Apache-2.0

// Package rpcxwire is what the frames of rpcx and the requests of its HTTP gateway have in common:
// the names of codecs, the keys of metadata, and the texts of errors.
package rpcxwire

import (
	"cmp"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/callfields"
	"github.com/yodel-rpc/yodel/protocol/internal/httpkeys"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// Codecs returns the names of the codecs for the serialize types of rpcx.
func Codecs() map[byte]string {
	return map[byte]string{0: "raw", 1: "json", 2: "protobuf", 3: "msgpack", 4: "thrift"}
}

// Keys of metadata that rpcx gives a meaning.
const (
	KeyAuth    = "__AUTH"
	KeyTimeout = "__ServerTimeout" // decimal milliseconds
	KeyError   = "__rpcx_error__"
	KeyAddress = "__ServerAddress" // rpcx clients set it in what they received
)

// Keys of metadata that yodel gives a meaning, beside those of callfields. Other implementations
// ignore them.
const (
	KeyNotProcessed = "yodel-not-processed" // "1"

	Authorization = "authorization" // the key of KeyAuth in yodel.Metadata
)

// Fields are the keys of yodel's fields that protocols name differently.
var Fields = callfields.Keys{Timeout: KeyTimeout, Attempt: "grpc-previous-rpc-attempts"}

// reserved reports whether a key is one that this package sets, so that it is not metadata of a
// caller or a handler. Most other keys with the prefix "yodel-" are reserved too.
func reserved(key string) bool {
	switch key {
	case KeyAuth, KeyTimeout, KeyError, KeyAddress, Fields.Attempt:
		return true
	}
	return metakeys.Reserved(key)
}

// Obstacle returns why rpcx cannot carry metadata with a key, or "". A value can be any text.
func Obstacle(key, _ string) string {
	if reserved(key) {
		return "the key is reserved in rpcx"
	}
	return ""
}

// Describe copies the metadata of a request, which has n pairs, to the fields of a call. A deadline
// counts from now. A time that is 0 or negative has passed, as in rpcx, and a time that is not a
// number is ignored.
func Describe(call *yodel.Call, pairs iter.Seq2[string, string], n int, now time.Time) {
	for key, value := range pairs {
		if control(call, key, value, now) {
			continue
		}
		if call.Metadata == nil {
			call.Metadata = make(yodel.Metadata, n)
		}
		if key == KeyAuth {
			key = Authorization
		}
		call.Metadata[key] = value
	}
	httpkeys.Read(call)
}

// control sets the field of a call for which a key stands. It reports false if the key belongs into
// the metadata of the call.
func control(call *yodel.Call, key, value string, now time.Time) bool {
	if key != KeyTimeout {
		return Fields.Read(call, key, value)
	}
	if left, ok := callfields.Millis(value); ok {
		call.Deadline = now.Add(max(left, 0))
	}
	return true
}

// The texts by which rpcx says that it cannot begin a call. Callers compare them.
const (
	NoService = "rpcx: can't find service "
	NoMethod  = "rpcx: can't find method "
	NoCodec   = "can not find codec for "
)

// TextOf returns the text of the error of a call for a client. For errors that rpcx knows, it is
// the text of rpcx.
func TextOf(s *yodel.Session, v *yodel.Served, path, method string, serialize byte, e *yodel.Error) string {
	if e.Code == yodel.Unimplemented && e.NotProcessed {
		switch {
		case v.Kind() == "" && s.HasService(path):
			return NoMethod + method
		case v.Kind() == "":
			return NoService + path
		case v.Call().Codec == nil:
			return NoCodec + strconv.Itoa(int(serialize))
		}
	}
	return Text(e)
}

// Text returns the text of an error for a client. For a handler's error without a code it is the
// unchanged text. For any other error, it is the code, the text and the ID.
func Text(e *yodel.Error) string {
	if e.Code == yodel.Unknown && e.ID == "" {
		return cmp.Or(e.Message, e.Code.String())
	}
	text := e.Code.String() + ": " + e.Message
	if e.ID != "" {
		text += " [" + e.ID + "]"
	}
	return text
}

// Parse returns the error for a text of rpcx by which a server says that it cannot begin a
// call. It reports false for any other text.
func Parse(text string) (*yodel.Error, bool) {
	for _, known := range []struct{ prefix, id string }{{NoService, "YDL2001"}, {NoMethod, "YDL2002"}, {NoCodec, "YDL2003"}} {
		if strings.HasPrefix(text, known.prefix) {
			return &yodel.Error{Code: yodel.Unimplemented, ID: known.id, Message: text, NotProcessed: true}, true
		}
	}
	return nil, false
}
