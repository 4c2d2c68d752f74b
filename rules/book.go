// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"time"
)

// A Book reads and writes the rules in a registry. Its methods may be called concurrently, and by
// several processes.
type Book struct{ keeper Keeper }

// A Keeper is a registry that stores records of operators for a service, beside the records of its
// instances. The values of registry.New are Keepers, and so are the registries of Consul and Nacos.
// Its methods may be called concurrently.
type Keeper interface {
	// Keep stores value as the record id of a kind. A nil value removes the record. Removing an
	// unknown record succeeds.
	Keep(ctx context.Context, service, kind, id string, value []byte) error
	// Kept calls update with all records of a kind by ID, at once and after every change, until ctx
	// ends. An error means that Kept may have missed changes. The caller then calls Kept again.
	Kept(ctx context.Context, service, kind string, update func(records map[string][]byte)) error
	// KeptServices returns the services that have records of a kind.
	KeptServices(ctx context.Context, kind string) ([]string, error)
}

// Open returns the rules in a registry. R is a Keeper, or a value of With for one. Otherwise Open
// returns an error.
func Open(r any) (*Book, error) { return nil, errors.ErrUnsupported }

// A Change is an entry of the history of a service's rules.
type Change struct {
	Revision int       `json:"revision"` // counts the changes of the service, from 1
	At       time.Time `json:"at"`
	// What is "put", "remove", "rollback" (of an operator), or "auto-rollback" (see Rollback).
	What   string `json:"what"`
	Rule   string `json:"rule"` // the ID of the rule
	Author string `json:"author"`
	Reason string `json:"reason"`
	// Before is nil if the rule was made by this change, and After is nil if it was removed.
	Before *Rule `json:"before,omitempty"`
	After  *Rule `json:"after,omitempty"`
}

// Diff returns the lines of the JSON forms of Before and After in which the two differ. A line
// begins with "- " if it is part of Before only, and with "+ " if it is part of After only.
func (c *Change) Diff() []string { return nil }

// List returns the rules of a service, sorted by ID, also those that are off or have expired. An
// empty service means all services. Records that are not valid rules are left out.
func (b *Book) List(ctx context.Context, service string) ([]Rule, error) {
	return nil, errors.ErrUnsupported
}

// Watch calls changed with the rules of a service, as List returns them, at once and after every
// change, until ctx ends. An empty service means all services; new services are then found within
// 2 s. Watch returns an error if the registry fails. The caller then calls it again.
func (b *Book) Watch(ctx context.Context, service string, changed func([]Rule)) error {
	return errors.ErrUnsupported
}

// Put stores a rule and adds an entry to the history. It sets Schema, ID, Created and Revision, and
// returns the rule as stored. A rule with the ID of an existing rule replaces it. If the rule is
// invalid, or Author or Reason is empty, the error is an *InvalidError.
func (b *Book) Put(ctx context.Context, r Rule) (Rule, error) { return r, errors.ErrUnsupported }

// Remove removes a rule and adds an entry to the history. Removing an unknown rule is an error that
// matches ErrNoRule.
func (b *Book) Remove(ctx context.Context, service, id, author, reason string) error {
	return errors.ErrUnsupported
}

// History returns the last 100 changes of a service's rules, newest first.
func (b *Book) History(ctx context.Context, service string) ([]Change, error) {
	return nil, errors.ErrUnsupported
}

// Rollback makes the rules of a service what they were after the change with a revision, by changes
// of their own. To undo the last change, roll back to the revision before it. Revision 0 is the
// state before the first change. If the history does not reach back so far, the error matches
// ErrNoRule.
func (b *Book) Rollback(ctx context.Context, service string, revision int, author, reason string) error {
	return errors.ErrUnsupported
}

// ErrNoRule is the error for a rule or a revision that does not exist.
var ErrNoRule = errors.New("there is no such rule or revision")
