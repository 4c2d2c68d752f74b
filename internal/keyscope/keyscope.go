// SPDX-License-Identifier: Apache-2.0

// Package keyscope decides where a call with an idempotency key may be sent again: only to servers
// that remember the key. See docs/decisions/0032-where-a-key-is-remembered.md.
package keyscope

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Process is the prefix of the names of memories that end with their process.
const Process = "process:"

// A Scope describes a server's memory of keys. Servers that share a memory name it alike.
type Scope struct {
	Name string        // empty if the server remembers no keys
	Keep time.Duration // how long the memory keeps a key
}

// Named returns the Scope of a memory. It replaces a name that is too long for the wire by a hash.
func Named(name string, keep time.Duration) Scope {
	if len(name) > wire.MaxKeyScope {
		name = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name)))
	}
	return Scope{name, keep}
}

// An Attempt says where and when an attempt of a call was sent.
type Attempt struct {
	Scope
	Addr string
	At   time.Duration // on the clock
}

// Began returns when the attempt was sent, in the encoding for a server with a memory of keys whose
// settings arrived at heard. Both times are on the clock.
func (a *Attempt) Began(heard time.Duration) uint64 {
	after := int64((a.At - heard) / time.Microsecond)
	if after == 0 {
		after = -1 // a field of value 0 is not sent
	}
	return uint64(after<<1 ^ after>>63) //nolint:gosec // zigzag
}

// Held returns why another attempt of the call may only go to servers that know the key, for
// people.
func (a *Attempt) Held(now time.Duration) string {
	return cmp.Or(a.Forgotten(now), a.Alone())
}

// Forgotten returns why no server knows the key of the attempt any more, for people. It returns ""
// if a server may still know it.
func (a *Attempt) Forgotten(now time.Duration) string {
	switch {
	case a.Name == "":
		return a.Addr + " does not remember idempotency keys"
	case now-a.At >= a.Keep:
		return fmt.Sprintf("%s remembers an idempotency key for %v only", a.Addr, a.Keep)
	}
	return ""
}

// Alone returns the text for a call that cannot be sent again because no other server shares the
// memory.
func (a *Attempt) Alone() string {
	if strings.HasPrefix(a.Name, Process) {
		return "its idempotency key is remembered by the process at " + a.Addr + " only"
	}
	return "no other endpoint shares the memory of idempotency keys of " + a.Addr
}

// SharedBy reports whether a server may share the memory with the one that got the attempt. Scope
// is nil if the server has not named its memory yet.
func (a *Attempt) SharedBy(scope *Scope) bool {
	switch {
	case a.Name == "":
		return false
	case scope == nil:
		return !strings.HasPrefix(a.Name, Process)
	}
	return scope.Name == a.Name
}

// A Hold records where a call with a key may have been executed or is executing. A call shares it
// with its forks. The zero Hold is ready for use. It may be used concurrently.
type Hold struct {
	mu    sync.Mutex
	open  int     // attempts that are in flight or may have been executed
	first Attempt // of these, or of the one before if there are none
}

// First returns the first of the attempts that are in flight or may have been executed. If there is
// none, open is false.
func (h *Hold) First() (first Attempt, open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.first, h.open > 0
}

// Held returns why the call may only be sent to servers that remember its key, for people. It
// returns "" if the call may go anywhere.
func (h *Hold) Held(now time.Duration) string {
	first, open := h.First()
	if !open {
		return ""
	}
	return first.Held(now)
}

// Claim records that attempt a is about to be sent. Claim fails if a server that does not share its
// memory with the one of a may have executed the call, or if the key may be forgotten, unless it is
// harmless to execute the call twice. First is as for Hold.First. If the attempt then fails and was
// certainly not executed, the caller must call Release.
func (h *Hold) Claim(a Attempt, harmless bool) (first Attempt, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == 0 {
		h.first = a
	} else if !harmless && (h.first.Forgotten(a.At) != "" || !h.first.SharedBy(&a.Scope)) {
		return h.first, false
	}
	h.open++
	return h.first, true
}

// Release undoes a Claim. The Hold may be nil: then Release does nothing.
func (h *Hold) Release() {
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open--
	}
}

// A Refusal is the cause of the error of an attempt that was refused because of its key.
type Refusal struct {
	Why string // for people
}

func (r *Refusal) Error() string { return r.Why }

// Refuse returns why a call of method that may have been executed is not sent again.
func Refuse(method, why string) *fault.Fault {
	return fault.Of(catalogue.Unrepeatable, method, "it may have been executed; not sent again: %s", why).Because(&Refusal{why})
}
