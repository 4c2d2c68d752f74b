// SPDX-License-Identifier: Apache-2.0

package introspect

// ActorsQuery selects actors of a process.
type ActorsQuery struct {
	Kind string `json:"kind,omitempty"` // of which kind; empty: of all kinds
}

// Actors are actors of a process that uses package actor, those with the longest inboxes first. The
// method actors.List returns it.
type Actors struct {
	Actors  []Actor `json:"actors"`
	Left    int     `json:"left,omitempty"` // further actors
	Waiting int     `json:"waiting"`        // messages in the inboxes of all actors
	Memory  int     `json:"memory"`         // bytes of messages that inboxes have accepted
	Limit   int     `json:"limit"`          // bytes that these messages may take together
}

// Actor describes an actor.
type Actor struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Inbox int    `json:"inbox"` // messages that wait
	// Held is how many messages have arrived before an earlier one of the same sender, and wait for
	// it.
	Held    int    `json:"held,omitempty"`
	Handled uint64 `json:"handled"` // messages that the actor has handled
}
