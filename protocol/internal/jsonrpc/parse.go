// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"bytes"
	"encoding/json"
)

// maxID is the largest size of an ID, in bytes.
const maxID = 1 << 10

// A request is one request of a message.
type request struct {
	version1 bool
	id       []byte // as it came; nil if it has none or if it is not valid
	silent   bool   // it is a notification
	method   string
	params   []byte // nil if it has none
	invalid  string // why it is not a valid request, or ""
}

// parse reads a request from a valid JSON value. Without version1, it must be a request of version
// 2.0.
func parse(b []byte, version1 bool) *request {
	q := new(request)
	if b[0] != '{' {
		q.invalid = "a request is an object"
		return q
	}
	var version, id, method []byte
	m := members{rest: b[1:]}
	for m.next() {
		var member *[]byte
		switch name := unquote(m.key); name {
		case "jsonrpc":
			member = &version
		case "id":
			member = &id
		case "method":
			member = &method
		case "params":
			member = &q.params
		default: // other members have no meaning
			continue
		}
		if *member != nil {
			q.fault("the request has two members " + string(m.key))
		}
		*member = m.value
	}
	q.version1 = version == nil && version1
	q.setID(id)
	switch {
	case version == nil && !version1:
		q.fault(`the member "jsonrpc" is missing`)
	case version != nil && string(version) != `"2.0"` && (version[0] != '"' || unquote(version) != "2.0"):
		q.fault(`the member "jsonrpc" must be "2.0"`)
	}
	switch {
	case method == nil:
		q.fault(`the member "method" is missing`)
	case method[0] != '"':
		q.fault(`the member "method" must be a string`)
	default:
		q.method = unquote(method)
	}
	if p := q.params; p != nil && p[0] != '[' && (p[0] != '{' || q.version1) {
		q.fault(`the member "params" must be an array` + map[bool]string{false: " or an object"}[q.version1])
	}
	q.silent = q.silent && q.invalid == ""
	return q
}

// fault stores why the request is not valid, unless it has another fault already.
func (q *request) fault(why string) {
	if q.invalid == "" {
		q.invalid = why
	}
}

// setID sets the ID. Version 1.0 allows any value.
func (q *request) setID(id []byte) {
	null := string(id) == "null"
	switch {
	case id == nil, null && q.version1:
		q.silent = true
	case len(id) > maxID:
		q.fault(`the member "id" is too long`)
	case null, isID(id), q.version1:
		q.id = id
	default:
		q.fault(`the member "id" must be a string, a number or null`)
	}
}

// isID reports whether a JSON value is an ID of version 2.0: a string or a number.
func isID(b []byte) bool {
	if len(b) == 0 || len(b) > maxID {
		return false
	}
	return b[0] == '"' && b[len(b)-1] == '"' && len(b) > 1 || (b[0] == '-' || b[0] >= '0' && b[0] <= '9') && json.Valid(b)
}

// unquote returns the text of a JSON string.
func unquote(b []byte) string {
	inner := b[1 : len(b)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	var s string
	_ = json.Unmarshal(b, &s) // it is a valid string
	return s
}

// A members iterates over the members of an object.
type members struct {
	rest       []byte // behind the opening bracket
	key, value []byte
}

// next goes to the next member. It returns false behind the last one, and also before a member that
// is cut off.
func (m *members) next() bool {
	var ok bool
	if m.key, m.rest, ok = cutValue(m.rest); !ok || m.key[0] != '"' {
		return false
	}
	m.value, m.rest, ok = cutValue(m.rest)
	return ok
}

// cutValue returns the first value of b and the bytes behind it. It skips spaces, a comma and a
// colon before the value. It returns false if a bracket is closed instead, or if the value is cut
// off.
func cutValue(b []byte) (value, rest []byte, ok bool) {
	for len(b) > 0 && (isSpace(b[0]) || b[0] == ',' || b[0] == ':') {
		b = b[1:]
	}
	if len(b) == 0 || b[0] == '}' || b[0] == ']' {
		return nil, b, false
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			n := stringEnd(b[i:])
			if n < 0 {
				return nil, nil, false
			}
			if i += n - 1; depth == 0 {
				return b[:i+1], b[i+1:], true
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // behind a number or a literal
				return b[:i], b[i:], true
			}
			if depth--; depth == 0 {
				return b[:i+1], b[i+1:], true
			}
		case ',', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return b[:i], b[i:], true
			}
		}
	}
	return nil, nil, false
}

// stringEnd returns the length of the string at the beginning of b, or -1 if it is cut off.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// elements returns the elements of an array, but no more than most.
func elements(array []byte, most int) (list [][]byte) {
	rest := array[1:]
	for len(list) < most {
		var value []byte
		var ok bool
		if value, rest, ok = cutValue(rest); !ok {
			break
		}
		list = append(list, value)
	}
	return list
}
