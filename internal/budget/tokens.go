// SPDX-License-Identifier: Apache-2.0

// Package budget bounds how many attempts are made beyond the first of each call: Tokens for one
// call and the calls that its handlers make, and an Allowance for all calls of a client.
//
// The attempt budget of a call consists of tokens. Each token pays for one attempt beyond the
// first. A token belongs to one process at any time. When a client sends a request to a method
// whose handler makes calls of its own, the client keeps one token and lends the others to the
// request. The client knows such a method because its server has said so. The reply says how many
// tokens were used, and the client takes the rest back. The client also does so for a stream whose
// caller no longer waits for it. Tokens that were lent to a request without a reply are lost,
// because they may be in use.
//
// So no level of the call tree makes more attempts than the budget of the root call allows. The
// callers nearest to the failure retry first. If a server dies, its client still has the token that
// it kept.
package budget

import (
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Max is the largest number of attempts that a call may have.
const Max = 1 << 20

// Tokens is the attempt budget of a call. Each token pays for one attempt beyond the first. It may
// be used concurrently.
type Tokens struct{ spare atomic.Int32 }

// Of returns the number of tokens for a number of attempts.
func Of(attempts int) int32 { return int32(min(attempts, Max) - 1) } //nolint:gosec // at most Max

// Set sets the number of tokens.
func (t *Tokens) Set(n int32) { t.spare.Store(n) }

// Left returns the number of tokens.
func (t *Tokens) Left() int32 { return t.spare.Load() }

// TakeAll takes all tokens, and returns how many it took.
func (t *Tokens) TakeAll() int32 { return t.spare.Swap(0) }

// Take takes one token, and reports whether there was one.
func (t *Tokens) Take() bool {
	for {
		n := t.spare.Load()
		if n <= 0 {
			return false
		}
		if t.spare.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// Lend takes all tokens except kept of them, and returns how many it took.
func (t *Tokens) Lend(kept int32) int32 {
	for {
		n := t.spare.Load()
		if n <= kept {
			return 0
		}
		if t.spare.CompareAndSwap(n, kept) {
			return n - kept
		}
	}
}

// Repay returns the lent tokens that were not used.
func (t *Tokens) Repay(lent int32, used uint64) {
	if left := int64(lent) - int64(min(used, Max)); left > 0 {
		t.spare.Add(int32(left)) //nolint:gosec // at most lent
	}
}

// Lender returns the Completer for a stream to which tokens of t were lent. It takes back the
// unused tokens when the stream ends, even if its caller stopped waiting before.
func (t *Tokens) Lender(st *mux.Stream, lent int32) mux.Completer { return &lender{st, loan{t, lent}} }

// A lender is a stream that takes back unused tokens when it is abandoned.
type lender struct {
	*mux.Stream
	loan
}

// A loan is a number of lent tokens and the budget that they belong to.
type loan struct {
	of   *Tokens
	lent int32
}

// Abandoned implements mux.Follower.
func (l *lender) Abandoned() mux.Completer { return &abandoned{l.loan} }

// An abandoned loan waits for the reply to a call whose caller no longer waits. Without a reply the
// tokens are lost.
type abandoned struct{ loan }

// Complete implements mux.Completer.
func (l *abandoned) Complete(a *mux.Answer, err error) {
	var f wire.Fields
	if err == nil && wire.ParseFields(a.Fields, &f) == nil {
		l.of.Repay(l.lent, f.Budget)
	}
}
