// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// Early has the last events of a client that no server knows yet. The zero Early is empty. It may
// be used concurrently.
type Early struct {
	mu     sync.Mutex
	events []introspect.Event
}

const maxEarly = 64

// Add adds an event.
func (e *Early) Add(event introspect.Event) {
	clipEvent(&event)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.events) == maxEarly {
		e.events = slices.Delete(e.events, 0, 1)
	}
	e.events = append(e.events, event)
}

// Take returns the events and forgets them.
func (e *Early) Take() []introspect.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	events := e.events
	e.events = nil
	return events
}

// clipEvent bounds the memory of an event.
func clipEvent(e *introspect.Event) {
	const word, sentence = 100, 300
	if e.At.IsZero() {
		e.At = time.Now()
	}
	e.At = e.At.Round(0).UTC()
	e.Kind, e.Object = text.Clip(e.Kind, word), text.Clip(e.Object, wire.MaxName)
	e.What, e.By = text.Clip(e.What, sentence), text.Clip(e.By, word)
}
