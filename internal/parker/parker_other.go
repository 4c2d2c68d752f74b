// SPDX-License-Identifier: Apache-2.0

//go:build !linux || indirect

package parker

// Possible says whether connections can be parked. On these systems each keeps its reader
// goroutine.
const Possible = false

type socketSet struct{ n int }

// Watch returns false.
func (*Parker) Watch(Member) bool { return false }

func (*socketSet) removeLocked(Member) {}

func (*socketSet) sweepLocked(int64) (closed, due []Member) { return nil, nil }
