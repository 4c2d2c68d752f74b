// SPDX-License-Identifier: Apache-2.0

package memory

import "testing"

func TestAStashKeepsALittle(t *testing.T) {
	var a Account
	a.Init(nil, 1<<20)
	var s Stash
	want := func(what string, used int64) {
		t.Helper()
		if got := a.used.Load(); got != used {
			t.Errorf("%s: %d bytes are counted, want %d", what, got, used)
		}
	}
	if !s.Take(&a, 100) {
		t.Fatal("there is no memory")
	}
	want("one and seven more", 800)
	for range 7 {
		s.Take(&a, 100)
	}
	want("those seven", 800)
	for range 8 {
		s.Give(&a, 100)
	}
	want("all are given back", 800)
	s.Take(&a, 1000)
	want("more than is kept", 8800)
	s.Take(&a, 600_000)
	s.Give(&a, 601_000)
	want("much is given back", MostStash/2)
	if s.Empty(&a); s.Take(&a, 1<<20+1) {
		t.Error("there is no limit")
	}
	want("empty", 0)
	// Near the limit, nothing is taken in advance.
	if !s.Take(&a, 1<<20-1000) || !s.Take(&a, 1000) || s.Take(&a, MostStash+1) {
		t.Error("the stash refuses what the account has, or the other way round")
	}
	s.Give(&a, 1<<20)
	s.Empty(&a)
	want("in the end", 0)
}
