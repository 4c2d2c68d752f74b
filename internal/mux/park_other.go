// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mux

// canPark says whether connections can be parked. On these systems each keeps its reader
// goroutine.
const canPark = false

type socketSet struct{ n int }

func (*parker) watch(*Conn) bool { return false }

func (*socketSet) removeLocked(*Conn) {}

func (*socketSet) sweepLocked(int64) (closed, due []*Conn) { return nil, nil }
