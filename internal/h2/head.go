// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/yodel-rpc/yodel/internal/hpack"
)

// A Field is a field of a header or a trailer.
type Field struct {
	Name, Value string
	Form        Form // how it is sent; unused in a field that was received
	Meaning     any  // what Config.Meaning has returned for a field that was received
}

// A Form says how a field is sent.
type Form uint8

// Once is for a field whose value is seldom the same, and Repeated for one that later replies will
// have, too. Secret keeps a field out of all tables (RFC 7541, section 7.1.3).
const (
	Once Form = iota
	Repeated
	Secret
)

// appendField appends a field to a block.
func appendField(block []byte, e *hpack.Encoder, f *Field) []byte {
	switch f.Form {
	case Repeated:
		return e.AppendRepeated(block, f.Name, f.Value)
	case Secret:
		return e.AppendSecret(block, f.Name, f.Value)
	default:
		return e.Append(block, f.Name, f.Value)
	}
}

// A Head is the head of a request.
type Head struct {
	Method, Scheme, Authority, Path string
	PathMeaning                     any // what Config.Meaning has returned for :path
	Fields                          []Field
	Length                          int64 // what content-length says, or -1
}

// A meaning is what the decoder keeps with a field in its table.
type meaning struct {
	of    any
	asked bool
	valid bool // the name and the value were checked
}

// A listing collects the fields of a block.
type listing struct {
	to        *Head
	trailer   bool
	left      int    // how many more bytes the list may have
	seen      uint8  // pseudo-fields
	tooLong   bool   // the list has more bytes than it may have
	malformed string // what RFC 9113, section 8, forbids
	meanings  func(name, value string) any
}

const (
	seenMethod = 1 << iota
	seenScheme
	seenAuthority
	seenPath
)

// add takes a field. It returns false if the rest of the list is of no use.
func (l *listing) add(name, value string, m *meaning) bool {
	if l.left -= len(name) + len(value) + 32; l.left < 0 {
		l.tooLong = true
		return false
	}
	pseudo := name != "" && name[0] == ':'
	if m == nil || !m.valid {
		switch {
		case !pseudo && !validName(name):
			l.malformed = "a field without a valid name"
		case !validValue(value):
			l.malformed = "a value with a control character, or with space around it"
		case m != nil:
			m.valid = true
		}
	}
	switch {
	case l.malformed != "":
	case pseudo:
		l.pseudo(name, value, m)
	default:
		l.regular(name, value, m)
	}
	return l.malformed == ""
}

func (l *listing) meaning(name, value string, m *meaning) any {
	if m == nil {
		return l.meanings(name, value)
	}
	if !m.asked {
		m.of, m.asked = l.meanings(name, value), true
	}
	return m.of
}

func (l *listing) pseudo(name, value string, m *meaning) {
	var bit uint8
	switch h := l.to; name {
	case ":method":
		bit, h.Method = seenMethod, value
	case ":scheme":
		bit, h.Scheme = seenScheme, value
	case ":authority":
		bit, h.Authority = seenAuthority, value
	case ":path":
		bit, h.Path = seenPath, value
		h.PathMeaning = l.meaning(name, value, m)
	}
	switch {
	case bit == 0:
		l.malformed = "an unknown pseudo-field"
	case l.seen&bit != 0:
		l.malformed = "a pseudo-field twice"
	case l.trailer:
		l.malformed = "a pseudo-field in a trailer"
	case len(l.to.Fields) > 0:
		l.malformed = "a pseudo-field behind another field"
	}
	l.seen |= bit
}

func (l *listing) regular(name, value string, m *meaning) {
	switch {
	case name == "te" && value != "trailers":
		l.malformed = "te is not trailers"
	case name == "connection", name == "proxy-connection", name == "keep-alive", name == "transfer-encoding", name == "upgrade":
		l.malformed = "a field of HTTP/1"
	case name == "content-length" && !l.trailer:
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil || l.to.Length >= 0 && l.to.Length != int64(n) { // 63 bits
			l.malformed = "content-length is not one number"
		}
		l.to.Length = int64(n) // 63 bits
	}
	l.to.Fields = append(l.to.Fields, Field{Name: name, Value: value, Meaning: l.meaning(name, value, m)})
}

// cost returns what Reserve is asked for the list. A Field takes up to twice the bytes of its
// share of the list.
func (l *listing) cost(c *Conn) int { return 2 * (c.cfg.MaxHeaderList - l.left) }

// finish checks a list that is complete.
func (l *listing) finish() {
	if l.malformed != "" || l.tooLong || l.trailer {
		return
	}
	const all = seenMethod | seenScheme | seenPath
	switch h := l.to; {
	case h.Method == http.MethodConnect:
		if l.seen != seenMethod|seenAuthority {
			l.malformed = "CONNECT does not have :authority alone"
		}
	case l.seen&all != all || h.Path == "":
		l.malformed = "a pseudo-field is missing"
	case !validMethod(h.Method):
		l.malformed = "a method that is not a token"
	case h.Path[0] != '/' && !strings.Contains(h.Path, "://") && (h.Method != http.MethodOptions || h.Path != "*"): // some clients send a whole URL
		l.malformed = "a path without a slash in front"
	}
}

// tokenBytes has the bytes of names (RFC 9110, section 5.6.2) except those in upper case.
var tokenBytes = func() (is [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz") {
		is[b] = true
	}
	return is
}()

func validName(name string) bool {
	for i := range len(name) {
		if !tokenBytes[name[i]] {
			return false
		}
	}
	return name != ""
}

// validValue checks a value (RFC 9113, section 8.2.1, and RFC 9110, section 5.5).
func validValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return strings.Trim(value, " \t") == value
}

// validMethod checks :method, which is a token (RFC 9110, section 9.1).
func validMethod(method string) bool {
	for i := range len(method) {
		if c := method[i]; !tokenBytes[c] && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return method != ""
}
