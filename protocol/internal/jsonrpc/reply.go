// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"github.com/yodel-rpc/yodel"
)

// A Reply is a reply that a client has received.
type Reply struct {
	// Number is the ID. It is 0 if the ID is not a positive integer.
	Number uint64
	// Result is the encoded result, or nil.
	Result []byte
	// Err is the error of the server, or nil.
	Err *yodel.Error
	// Foreign says that the message is a request of the server, and not a reply.
	Foreign bool
}

var errNoReply = errors.New("a message is neither a request nor a reply")

// ParseReply parses a message from Reader.Next. Version1 says that errors are texts.
func ParseReply(b []byte, version1 bool) (r Reply, err error) {
	if b[0] != '{' {
		return r, errNoReply
	}
	var failed []byte
	m := members{rest: b[1:]}
	for m.next() {
		switch unquote(m.key) {
		case "id":
			r.Number = NumberOf(m.value)
		case "result":
			r.Result = m.value
		case "error":
			failed = m.value
		case "method":
			r.Foreign = true
		}
	}
	switch null := failed == nil || string(failed) == "null"; {
	case !null && version1:
		r.Err = ErrorOfText(failed)
	case !null:
		r.Err = ErrorOf(failed)
	case r.Result == nil && !r.Foreign:
		return r, errNoReply
	}
	return r, nil
}

// NumberOf returns the number of a request whose ID is a positive integer, and otherwise 0. A peer
// whose numbers are floating-point may send 1.0 for 1.
func NumberOf(id []byte) uint64 {
	if n, err := strconv.ParseUint(string(id), 10, 64); err == nil {
		return n
	}
	const exact = 1 << 53
	f, err := strconv.ParseFloat(string(id), 64)
	if err != nil || f < 1 || f > exact || f != math.Trunc(f) {
		return 0
	}
	return uint64(f)
}

// AppendMethod appends the member "method" of a request to dst.
func AppendMethod(dst []byte, method string) []byte {
	dst = append(dst, `"method":`...)
	for i := range len(method) {
		if c := method[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x80 {
			quoted, _ := json.Marshal(method) //nolint:errchkjson // a string cannot fail
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), method...), '"')
}

// Elements returns the elements of a valid JSON array, but no more than most. It returns nil if
// value is not an array.
func Elements(value []byte, most int) [][]byte {
	if len(value) == 0 || value[0] != '[' {
		return nil
	}
	return elements(value, most)
}
