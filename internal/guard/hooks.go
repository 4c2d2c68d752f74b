// SPDX-License-Identifier: Apache-2.0

package guard

import "sync"

// Hooks tracks the running hooks of connections, so that Close, when a hook calls it, does not wait
// for that hook. The zero value is ready to use. Hooks may be used concurrently.
type Hooks struct {
	mu       sync.Mutex
	running  int
	released chan struct{} // closed by Release
}

// Run runs a hook with Guard.Apart and waits for it. If Release is called meanwhile, Run returns
// ErrReleased.
func (h *Hooks) Run(g *Guard, what string, f func() error) error {
	h.mu.Lock()
	h.running++
	if h.released == nil {
		h.released = make(chan struct{})
	}
	released := h.released
	h.mu.Unlock()
	return g.Apart(what, released, func() error {
		defer h.ended()
		return f()
	})
}

func (h *Hooks) ended() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
}

// Release makes Run stop waiting for all running hooks, because one of these hooks may be waiting
// for the caller of Release.
func (h *Hooks) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running > 0 && h.released != nil {
		close(h.released)
		h.released = nil
	}
}
