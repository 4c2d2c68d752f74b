// SPDX-License-Identifier: Apache-2.0

package memory

import "sync/atomic"

// A Share counts the memory that this side holds for one peer, over connections without an Account.
// Call Init first. Take and Give may be called concurrently.
type Share struct {
	of   *Limit
	most int64
	held atomic.Int64
}

// Init begins a share of a Limit. Most bounds it.
func (s *Share) Init(of *Limit, most int) { s.of, s.most = of, int64(most) }

// Take counts n bytes that are about to be allocated, and reports whether they may be.
func (s *Share) Take(n int) bool {
	held := s.held.Add(int64(n))
	if held <= s.most && s.of.TakeFor(n, int(held)) {
		return true
	}
	s.held.Add(-int64(n))
	return false
}

// Give uncounts n bytes.
func (s *Share) Give(n int) {
	s.held.Add(-int64(n))
	s.of.Give(n)
}
