// SPDX-License-Identifier: Apache-2.0

package memory

// MostStash is the most that a Stash keeps.
const MostStash = 64 << 10

// A Stash is a part of an Account that is kept for the next requests. Most requests take bytes that
// an earlier request has given back, which costs one addition. The owner passes the same Account
// each time. A lock of the owner guards the Stash.
type Stash struct{ n int }

// Take is Account.Take. It may take some for the next requests too.
func (s *Stash) Take(of *Account, n int) bool {
	if s.n >= n {
		s.n -= n
		return true
	}
	if ahead := min(7*n, MostStash/2); of.Take(n + ahead) {
		s.n += ahead
		return true
	}
	return of.Take(n)
}

// Give uncounts bytes that Take counted.
func (s *Stash) Give(of *Account, n int) {
	if s.n += n; s.n > MostStash {
		of.Give(s.n - MostStash/2)
		s.n = MostStash / 2
	}
}

// Empty returns to the Account what is kept.
func (s *Stash) Empty(of *Account) {
	of.Give(s.n)
	s.n = 0
}
