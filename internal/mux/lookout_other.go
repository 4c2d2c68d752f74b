// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mux

// sleeping says whether connections can be parked. On these systems each keeps its reader
// goroutine.
const sleeping = false

type sockets struct{ n int }

func (*lookout) watch(*Conn) bool { return false }

func (*sockets) removeLocked(*Conn) {}

func (*sockets) sweepLocked(int64) (closed, due []*Conn) { return nil, nil }
