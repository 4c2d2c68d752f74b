// SPDX-License-Identifier: Apache-2.0

package firstbytes

import "github.com/yodel-rpc/yodel/internal/wire"

// Recognize returns the first of the protocols that a connection beginning with first speaks. It
// returns the zero P for yodel's own protocol, and if no protocol matches. More says that further
// bytes may decide it.
func Recognize[P interface {
	Match(first []byte) (ok, more bool)
}](first []byte, protocols []P) (p P, found, more bool) {
	if n := min(len(first), len(wire.Magic)); string(first[:n]) == wire.Magic[:n] {
		return p, false, n < len(wire.Magic)
	}
	for _, p := range protocols {
		ok, maybe := p.Match(first)
		if ok {
			return p, true, false
		}
		more = more || maybe
	}
	return p, false, more
}
