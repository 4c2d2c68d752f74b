// SPDX-License-Identifier: Apache-2.0

package admission

import "context"

// Enter takes room for a call of n bytes on its session and on its server. If one of them has no
// room, Enter returns its name. A call that is the only one of its session counts as a lone one on
// the server. If wait is set, Enter waits for room until ctx ends.
func Enter(ctx context.Context, session, server *Room, n int, wait bool) (where string) {
	only, ok := session.Enter(ctx, n, false, wait)
	if !ok {
		return "connection"
	}
	if _, ok = server.Enter(ctx, n, only, wait); !ok {
		session.Leave(n)
		return "server"
	}
	return ""
}

// Leave gives back what Enter has taken.
func Leave(session, server *Room, n int) {
	server.Leave(n)
	session.Leave(n)
}
