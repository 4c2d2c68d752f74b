// SPDX-License-Identifier: Apache-2.0

// Package methodname finds the methods of a server for the names of protocols in whose languages a
// method begins with a small letter.
package methodname

import (
	"unicode"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
)

// A Finder finds the methods for the names of one connection. One goroutine may use it at a time.
type Finder struct {
	session *yodel.Session
	known   map[name]string // only of existing methods
	most    int             // how many
}

// A name is the name of a method in another protocol. Service may be "".
type name struct{ service, method string }

// full returns the name of the method in yodel.
func (n name) full() string {
	if n.service == "" {
		return n.method
	}
	return n.service + "." + n.method
}

// NewFinder returns a Finder for a session.
func NewFinder(s *yodel.Session) *Finder {
	return &Finder{session: s, known: make(map[name]string), most: s.Limits().MaxMethods}
}

// Begin begins a call of a method of a service: the one with this name, or else the one with this
// name and a capital first letter. Service may be "".
func (f *Finder) Begin(service, method string, codec yodel.Codec) *yodel.Served {
	asked := name{service, method}
	if known, ok := f.known[asked]; ok {
		return f.session.Begin(known, codec, nil)
	}
	v := f.session.Begin(asked.full(), codec, nil)
	if first, size := utf8.DecodeRuneInString(method); v.Kind() == "" && unicode.IsLower(first) {
		raised := f.session.Begin(name{service, string(unicode.ToUpper(first)) + method[size:]}.full(), codec, nil)
		if raised.Kind() == "" {
			raised.End()
		} else {
			v.End()
			v = raised
		}
	}
	if v.Kind() != "" && len(f.known) < f.most {
		f.known[asked] = v.Call().Method
	}
	return v
}
