// SPDX-License-Identifier: Apache-2.0

package dialled

import (
	"math/rand/v2"
	"slices"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// Conns are the connections of one endpoint, the oldest first.
type Conns []*Conn

// Least returns the connection with the fewest open calls, preferring connections that are not
// saturated and then the oldest, or a random one. It also reports whether all are saturated. It
// returns nil if there is no connection.
func (of Conns) Least(random bool) (least *Conn, saturated bool) {
	fewest, first := 0, 0
	if random && len(of) > 1 {
		first = rand.IntN(len(of))
	}
	for i := range of {
		conn := of[(first+i)%len(of)]
		n, full := conn.Load()
		if least == nil || !full && saturated || full == saturated && n < fewest {
			least, fewest, saturated = conn, n, full
		}
	}
	return least, saturated
}

// Next returns the connection for a call. Own is the connection on which the call came whose
// handler makes the call, or nil. The handler's calls to its caller use this connection. It
// recognizes nested calls, and does not make them wait for the call that caused them. Most is how
// many connections there may be. Fixed says that there should always be so many, and that their
// order does not matter. Next also reports whether the call wants an additional connection.
func (of Conns) Next(own *mux.Conn, most int, fixed bool) (conn *Conn, more bool) {
	if own != nil {
		if i := slices.IndexFunc(of, func(conn *Conn) bool { return conn.Mux == own }); i >= 0 {
			return of[i], false
		}
	}
	conn, saturated := of.Least(fixed)
	return conn, (saturated || fixed) && len(of) < most
}

// Beside returns the connection for a call while an additional one is being made. Wait says that
// the call would wait for others on it.
func (of Conns) Beside() (conn *Conn, wait bool) {
	conn, full := of.Least(false)
	return conn, full && conn.Foreign != nil
}

// Remembering returns a connection to a server whose memory of idempotency keys has a name, or nil.
func (of Conns) Remembering(name string) *Conn {
	i := slices.IndexFunc(of, func(conn *Conn) bool { return conn.Server.Keys.Name == name })
	if i < 0 {
		return nil
	}
	return of[i]
}
