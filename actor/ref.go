// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"net"
	"net/url"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// A Ref names an actor. It is a plain value: it may be compared with ==, and may be a field of a
// message. It works in every System that can connect to Addr. If the actor's System does not
// listen, the Ref works in the Systems to which that System is connected. A Ref belongs to no
// connection: it works again when the System has connected again.
type Ref struct {
	// Addr is the address of the System that hosts the actor. A System that does not listen has an
	// address that begins with "@".
	Addr string
	// Kind is the name of the actor's kind.
	Kind string
	// Name is the name of the actor. It is unique in its System.
	Name string
}

// scheme begins the text of a Ref.
const scheme = "actor://"

// String returns the Ref as text, such as "actor://127.0.0.1:7077/shop.Cart/ann", which ParseRef
// reads.
func (r Ref) String() string {
	return scheme + r.Addr + "/" + url.PathEscape(r.Kind) + "/" + url.PathEscape(r.Name)
}

// IsZero reports whether r names no actor.
func (r Ref) IsZero() bool { return r == Ref{} }

// ParseRef reads what Ref.String has written.
func ParseRef(s string) (Ref, error) {
	wrong := func(why string) (Ref, error) {
		return Ref{}, yodel.Errorf(yodel.InvalidArgument, "actor: %.200q is not a reference such as %shost:port/kind/name: %s", s, scheme, why)
	}
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return wrong("it does not begin with " + scheme)
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return wrong("it needs an address, a kind and a name")
	}
	r := Ref{Addr: parts[0]}
	var err error
	if r.Kind, err = url.PathUnescape(parts[1]); err == nil {
		r.Name, err = url.PathUnescape(parts[2])
	}
	switch {
	case err != nil:
		return wrong(err.Error())
	case r.Kind == "" || !isName(r.Name):
		return wrong("the kind or the name is empty or invalid")
	}
	if err := checkAddr(r.Addr); err != nil {
		return wrong(err.Error())
	}
	return r, nil
}

// checkAddr returns what is wrong with the address of a System.
func checkAddr(addr string) error {
	if id, ok := strings.CutPrefix(addr, "@"); ok && id != "" {
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err == nil && (host == "" || port == "" || port == "0") {
		err = yodel.Errorf(yodel.InvalidArgument, "the address has no host or no port")
	}
	return err
}
