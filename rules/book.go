// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

// A Book reads and writes the rules in a registry. Its methods may be called concurrently, and by
// several processes.
type Book struct {
	keeper  Keeper
	running chan struct{} // holds the token of the running change
}

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
	// KeptServices returns all services that have records of a kind. If it returns an error, the
	// names may be incomplete.
	KeptServices(ctx context.Context, kind string) ([]string, error)
}

// The kinds of records that a Book keeps.
const (
	rulesKind   = "rules"
	historyKind = "history"
)

// autoRollback is the author of a change that a Rollback condition has made, and its name in the
// history.
const autoRollback = "auto-rollback"

// maxHistory is how many changes of a service are kept.
const maxHistory = 100

// Open returns the rules in a registry. R is a Keeper, or a value of With for one. Otherwise Open
// returns an error.
func Open(r any) (*Book, error) {
	k, ok := r.(Keeper)
	if !ok {
		return nil, fmt.Errorf("a %T keeps no rules", r)
	}
	return &Book{keeper: k, running: make(chan struct{}, 1)}, nil
}

// ErrNoRule is the error for a rule or a revision that does not exist.
var ErrNoRule = errors.New("there is no such rule or revision")

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
func (c *Change) Diff() []string {
	before, after := lines(c.Before), lines(c.After)
	var diff []string
	for _, line := range before {
		if !slices.Contains(after, line) {
			diff = append(diff, "- "+line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			diff = append(diff, "+ "+line)
		}
	}
	return diff
}

// lines returns a line "path: value" for each value of the JSON form of a rule.
func lines(r *Rule) []string {
	if r == nil {
		return nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	var all []string
	flatten(&all, "", data)
	return all
}

// flatten appends a line for each value in data, which is JSON.
func flatten(lines *[]string, path string, data json.RawMessage) {
	var object map[string]json.RawMessage
	if json.Unmarshal(data, &object) != nil || len(object) == 0 {
		*lines = append(*lines, path+": "+string(data))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		flatten(lines, strings.TrimPrefix(path+"."+name, "."), object[name])
	}
}

// List returns the rules of a service, sorted by ID, also those that are off or have expired. An
// empty service means all services. If the registry can read the rules of some services only, List
// returns them together with an error. Invalid has the records that are not valid rules.
func (b *Book) List(ctx context.Context, service string) ([]Rule, error) {
	list, _, err := b.Read(ctx, service)
	return list, err
}

// Invalid returns the records of a service that are not valid rules, sorted by ID, with the reasons
// in RuleState.Problem. List leaves them out, and processes refuse them. A process that has applied
// a valid rule with that ID still does so. An empty service means all services. As List, Invalid
// may return a part of the records together with an error.
func (b *Book) Invalid(ctx context.Context, service string) ([]introspect.RuleState, error) {
	_, invalid, err := b.Read(ctx, service)
	return invalid, err
}

// Read returns the results of List and of Invalid. It reads the records of each service once.
func (b *Book) Read(ctx context.Context, service string) (list []Rule, invalid []introspect.RuleState, err error) {
	err = b.each(ctx, service, func(name string, records map[string][]byte) {
		valid, rest := rulesIn(name, records)
		list, invalid = append(list, valid...), append(invalid, rest...)
	})
	return list, invalid, err
}

// readers is how many services each reads at the same time.
const readers = 16

// each calls f with the records of the rules of a service, or of all services one by one if service
// is empty. It returns an error if it has not read all of them.
func (b *Book) each(ctx context.Context, service string, f func(service string, records map[string][]byte)) error {
	services, unlisted := []string{service}, error(nil)
	if service == "" {
		if services, unlisted = b.keeper.KeptServices(ctx, rulesKind); unlisted != nil {
			unlisted = fmt.Errorf("list the services with rules: %w", unlisted)
		}
		slices.Sort(services)
	}
	records, errs := make([]map[string][]byte, len(services)), make([]error, len(services))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(readers, len(services)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(services)); i = next.Add(1) - 1 {
				if errs[i] = context.Cause(ctx); errs[i] == nil {
					records[i], errs[i] = b.read(ctx, services[i], rulesKind)
				}
			}
		})
	}
	wg.Wait()
	read, failed := 0, unlisted
	for i, name := range services {
		if failed = cmp.Or(failed, errs[i]); errs[i] == nil {
			f(name, records[i])
			read++
		}
	}
	switch unread := len(services) - read; {
	case failed == nil || read == 0:
		return failed
	case unread > 0:
		return fmt.Errorf("the list of rules is not complete, because the rules of %d of %d services cannot be read: %w", unread, len(services), failed)
	}
	return fmt.Errorf("the list of rules is not complete: %w", failed)
}

// read returns the records of a kind.
func (b *Book) read(ctx context.Context, service, kind string) (records map[string][]byte, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first := false
	err = b.keeper.Kept(ctx, service, kind, func(now map[string][]byte) {
		if !first {
			records, first = now, true
		}
		cancel()
	})
	switch {
	case first:
		return records, nil
	case err == nil:
		err = cmp.Or(context.Cause(ctx), errors.New("the registry returned nothing"))
	}
	return nil, fmt.Errorf("read the %s of %s: %w", kind, service, err)
}

// rulesIn returns the rules in records, and the records that are not valid rules, sorted by ID.
func rulesIn(service string, records map[string][]byte) (valid []Rule, invalid []introspect.RuleState) {
	for _, id := range slices.Sorted(maps.Keys(records)) {
		if r, err := ruleIn(service, id, records[id]); err == nil {
			valid = append(valid, r)
		} else {
			invalid = append(invalid, introspect.RuleState{Service: service, ID: id, State: "invalid", Problem: err.Error()})
		}
	}
	return valid, invalid
}

// ruleIn returns the rule in a record.
func ruleIn(service, id string, data []byte) (Rule, error) {
	r, err := Decode(data)
	if err != nil {
		return r, err
	}
	if r.Service != service || r.ID != id {
		return r, &InvalidError{[]Problem{{ID: "YDL-R004", Field: "id", Text: fmt.Sprintf("the record is that of %s in %s", r.ID, r.Service)}}}
	}
	return r, r.invalid()
}

// Watch calls changed with the rules of a service, as List returns them, at once and after every
// change, until ctx ends. An empty service means all services. Changes are then found within 2 s,
// or later if the registry needs more than 100 ms to list the rules. Watch returns an error if the
// registry fails. The caller then calls it again.
func (b *Book) Watch(ctx context.Context, service string, changed func([]Rule)) error {
	if service == "" {
		return b.watchAll(ctx, changed)
	}
	return b.keeper.Kept(ctx, service, rulesKind, func(records map[string][]byte) {
		valid, _ := rulesIn(service, records)
		changed(valid)
	})
}

// pollAll is how often Watch looks for changes in all services. If the registry takes long to list
// them, the pause is longer, so that Watch does not keep the registry busy.
const pollAll = time.Second

// restAfterList is how many times the duration of a list of all rules Watch pauses.
const restAfterList = 9

func (b *Book) watchAll(ctx context.Context, changed func([]Rule)) error {
	var last []byte
	for {
		began := time.Now()
		all, err := b.List(ctx, "")
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it is the end that was asked for
		}
		if err != nil {
			return err
		}
		now, err := json.Marshal(all)
		if err != nil {
			return err
		}
		if last == nil || !bytes.Equal(now, last) {
			changed(all)
			last = now
		}
		select {
		case <-time.After(max(pollAll, restAfterList*time.Since(began))):
		case <-ctx.Done():
			return nil
		}
	}
}

// Put stores a rule and adds an entry to the history. It sets Schema, ID, Created and Revision, and
// returns the rule as stored. A rule with the ID of an existing rule replaces it. If the Revision
// of the rule is not 0, the change is based on that revision: if the stored rule has another one,
// or was removed, the error is a *ConflictError. If the rule is invalid, or Author or Reason is
// empty, the error is an *InvalidError.
func (b *Book) Put(ctx context.Context, given Rule) (Rule, error) {
	given.Schema = cmp.Or(given.Schema, Schema)
	if err := given.storable(time.Now()); err != nil {
		return given, err
	}
	r := given
	err := b.change(ctx, given.Service, func(s *shelf) error {
		r = given
		if err := s.based(r.ID, r.Revision); err != nil {
			return err
		}
		if r.ID == "" {
			r.ID = s.freeID(r.Kind())
		}
		if s.full(&r) {
			return &InvalidError{[]Problem{{ID: "YDL-R014", Text: fmt.Sprintf("%d rules of %s are switched on", maxRules, r.Service), Hint: "remove some"}}}
		}
		var err error
		r, err = s.put(ctx, "put", r)
		return err
	})
	return r, err
}

// storable returns an error if the rule may not be stored.
func (r *Rule) storable(now time.Time) error {
	if err := r.invalid(); err != nil {
		return err
	}
	if !r.Expires.IsZero() && r.Expires.Before(now) {
		return &InvalidError{[]Problem{{ID: "YDL-R011", Field: "expires", Text: "it has expired", Hint: "set a later time, or switch the rule off"}}}
	}
	return signed(r.Author, r.Reason)
}

// applicable returns an error if processes would refuse the rule as it is stored, or as its
// Rollback would store it.
func (r *Rule) applicable() error {
	if err := r.invalid(); err != nil || r.Rollback == nil || r.Off {
		return err
	}
	last := *r
	last.Off, last.Ended, last.Author, last.Reason = true, time.Now().UTC(), autoRollback, strings.Repeat("-", maxText)
	return last.invalid()
}

// signed returns an error if the author or the reason of a change is missing.
func signed(author, reason string) error {
	c := &checker{}
	c.text("author", author, true)
	c.text("reason", reason, true)
	if len(c.found) > 0 {
		return &InvalidError{c.found}
	}
	return nil
}

// Remove removes a rule and adds an entry to the history. Removing an unknown rule is an error that
// matches ErrNoRule. Revision is the revision of the rule on which the change is based, as in Put;
// 0 means any.
func (b *Book) Remove(ctx context.Context, service, id string, revision int, author, reason string) error {
	if err := signed(author, reason); err != nil {
		return err
	}
	return b.change(ctx, service, func(s *shelf) error {
		if _, ok := s.records[id]; !ok {
			return fmt.Errorf("remove the rule %s of %s: %w", id, service, ErrNoRule)
		}
		if err := s.based(id, revision); err != nil {
			return err
		}
		return s.remove(ctx, "remove", id, author, reason)
	})
}

// A ConflictError is the error of a change that is based on an old revision of a rule. Nothing was
// changed.
type ConflictError struct {
	Service, ID string
	Revision    int      // on which the change is based
	Now         *Rule    // the rule as stored; nil if it was removed
	Diff        []string // from the revision of the change to the stored rule, as Change.Diff returns it
}

// Error says who has changed the rule.
func (e *ConflictError) Error() string {
	if e.Now == nil {
		return fmt.Sprintf("the rule %s of %s was removed since revision %d, on which the change is based", e.ID, e.Service, e.Revision)
	}
	return fmt.Sprintf("%s has changed the rule %s of %s to revision %d (%s), and the change is based on revision %d",
		e.Now.Author, e.ID, e.Service, e.Now.Revision, e.Now.Reason, e.Revision)
}

// based returns a *ConflictError if the rule with an ID is not at a revision. 0 means any.
func (s *shelf) based(id string, revision int) error {
	now, ok := s.rule(id)
	if revision == 0 || ok && now.Revision == revision {
		return nil
	}
	e := &ConflictError{Service: s.service, ID: id, Revision: revision}
	if ok {
		e.Now = &now
	}
	for _, entry := range s.history {
		var c Change
		if json.Unmarshal(entry, &c) == nil && c.Rule == id && c.Revision == revision {
			e.Diff = (&Change{Before: c.After, After: e.Now}).Diff()
		}
	}
	return e
}

// History returns the last 100 changes of a service's rules, newest first.
func (b *Book) History(ctx context.Context, service string) ([]Change, error) {
	records, err := b.read(ctx, service, historyKind)
	if err != nil {
		return nil, err
	}
	changes := make([]Change, 0, len(records))
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(records))) {
		var c Change
		if json.Unmarshal(records[id], &c) == nil && c.Revision > 0 {
			changes = append(changes, c)
		}
	}
	return changes[:min(len(changes), maxHistory)], nil
}

// Rollback makes the rules of a service what they were after the change with a revision, by changes
// of their own. To undo the last change, roll back to the revision before it. Revision 0 is the
// state before the first change. If the history does not reach back so far, the error matches
// ErrNoRule. From is the newest revision that the operator knows, or 0: if there is a newer one,
// the error is a *ConflictError.
func (b *Book) Rollback(ctx context.Context, service string, revision, from int, author, reason string) error {
	if err := signed(author, reason); err != nil {
		return err
	}
	return b.change(ctx, service, func(s *shelf) error {
		then, err := s.asOf(revision)
		if err != nil {
			return err
		}
		if newest := s.revision() - 1; from > 0 && newest != from {
			return s.newer(from)
		}
		from = 0 // the changes of this rollback follow
		for _, id := range slices.Sorted(maps.Keys(then)) {
			r := then[id]
			switch now, ok := s.rule(id); {
			case r == nil && ok:
				err = s.remove(ctx, "rollback", id, author, reason)
			case r != nil && (!ok || !sameEffect(r, &now)):
				r.Author, r.Reason = author, reason
				_, err = s.put(ctx, "rollback", *r)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// newer returns the *ConflictError for the oldest change since a revision.
func (s *shelf) newer(since int) error {
	for _, id := range slices.Sorted(maps.Keys(s.history)) {
		var c Change
		if json.Unmarshal(s.history[id], &c) == nil && c.Revision > since {
			return &ConflictError{Service: s.service, ID: c.Rule, Revision: since, Now: c.After, Diff: c.Diff()}
		}
	}
	return &ConflictError{Service: s.service, Revision: since}
}

// At returns the rules of a service as they were after the change with a revision, sorted by ID,
// and the newest revision. If the history does not reach back so far, the error matches ErrNoRule.
func (b *Book) At(ctx context.Context, service string, revision int) (then []Rule, newest int, err error) {
	s := &shelf{keeper: b.keeper, service: service}
	if err := s.read(ctx, b); err != nil {
		return nil, 0, err
	}
	changed, err := s.asOf(revision)
	if err != nil {
		return nil, 0, err
	}
	all := make(map[string]*Rule)
	valid, _ := rulesIn(service, s.records)
	for _, r := range valid {
		all[r.ID] = &r
	}
	maps.Copy(all, changed)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if r := all[id]; r != nil {
			then = append(then, *r)
		}
	}
	return then, s.revision() - 1, nil
}

// sameEffect reports whether two rules do the same.
func sameEffect(a, b *Rule) bool {
	x, y := *a, *b
	x.Revision, x.Author, x.Reason, x.Created, x.Ended = y.Revision, y.Author, y.Reason, y.Created, y.Ended
	return slices.Equal(lines(&x), lines(&y))
}

// rolledBack switches a rule off whose Rollback condition is broken, unless it has changed since
// revision.
func (b *Book) rolledBack(ctx context.Context, service, id string, revision int, why string) error {
	return b.change(ctx, service, func(s *shelf) error {
		r, ok := s.rule(id)
		if !ok || r.Off || r.Revision != revision {
			return nil // another process or an operator was faster
		}
		r.Off, r.Author, r.Reason = true, autoRollback, why
		_, err := s.put(ctx, autoRollback, r)
		return err
	})
}

// errContended is the error of a change that another process makes at the same time.
var errContended = errors.New("another process changes the rules at the same time")

// maxContended is how often a change is tried that other processes make at the same time.
const maxContended = 50

// change runs f with the rules and the history of a service. Changes of one Book run one after the
// other. If another process changes the rules at the same time, f runs again with what that process
// has written.
func (b *Book) change(ctx context.Context, service string, f func(s *shelf) error) error {
	select {
	case b.running <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-b.running }()
	for range maxContended {
		s := &shelf{keeper: b.keeper, service: service}
		if err := s.read(ctx, b); err != nil {
			return err
		}
		if !s.pending() {
			if err := f(s); !errors.Is(err, errContended) {
				return err
			}
		}
		select {
		case <-time.After(time.Millisecond + rand.N(20*time.Millisecond)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return errContended
}

// read reads the rules and the history.
func (s *shelf) read(ctx context.Context, b *Book) (err error) {
	if s.history, err = b.read(ctx, s.service, historyKind); err != nil {
		return err
	}
	s.records, err = b.read(ctx, s.service, rulesKind)
	return err
}

// pendingTime is how long a process may take from its entry in the history to the change of the
// rule. An entry that is older was left by a process that has ended in between.
const pendingTime = 2 * time.Second

// pending reports whether another process has written the newest entry of the history, and is about
// to change the rule.
func (s *shelf) pending() bool {
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(s.history))) {
		var c Change
		if json.Unmarshal(s.history[id], &c) != nil || time.Since(c.At).Abs() > pendingTime {
			return false
		}
		r, ok := s.rule(c.Rule)
		if _, kept := s.records[c.Rule]; kept && !ok { // a broken record says nothing
			return false
		}
		return ok != (c.After != nil) || ok && r.Revision < c.Revision
	}
	return false
}

// claim returns errContended if the history has another entry of the revision of ours. Registries
// have no common compare-and-swap. Each writer adds its entry, and then reads the history. Of two
// writers, the one that adds its entry later sees that of the other one, so at most one of them
// goes on to change the rule. One that begins meanwhile waits until the change is made: see
// pending.
func (s *shelf) claim(ctx context.Context, ours string) error {
	now, err := (&Book{keeper: s.keeper}).read(ctx, s.service, historyKind)
	if err != nil {
		return err
	}
	for id := range now {
		if id != ours && revisionOf(id) >= revisionOf(ours) {
			return errContended
		}
	}
	return nil
}

// A shelf is the rules and the history of a service during a change.
type shelf struct {
	keeper           Keeper
	service          string
	records, history map[string][]byte
}

// rule returns the valid rule with an ID.
func (s *shelf) rule(id string) (Rule, bool) {
	data, ok := s.records[id]
	if !ok {
		return Rule{}, false
	}
	r, err := ruleIn(s.service, id, data)
	return r, err == nil
}

// freeID returns an ID that no rule has.
func (s *shelf) freeID(kind string) string {
	for {
		id := fmt.Sprintf("%s-%04x", kind, rand.N(1<<16))
		if _, taken := s.records[id]; !taken {
			return id
		}
	}
}

// full reports whether there is no room for another rule that is switched on.
func (s *shelf) full(r *Rule) bool {
	now, n := time.Now(), 0
	for id := range s.records {
		if other, ok := s.rule(id); ok && id != r.ID && other.Active(now) {
			n++
		}
	}
	return n >= maxRules && r.Active(now)
}

// revision returns the number of the next change.
func (s *shelf) revision() int {
	last := 0
	for id := range s.history {
		last = max(last, revisionOf(id))
	}
	for id := range s.records {
		if r, ok := s.rule(id); ok {
			last = max(last, r.Revision)
		}
	}
	return last + 1
}

// revisionOf returns the revision in the ID of a record of the history, or 0.
func revisionOf(id string) int {
	digits, _, _ := strings.Cut(id, "-")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

func (s *shelf) put(ctx context.Context, what string, r Rule) (Rule, error) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	c := Change{What: what, At: now, Rule: r.ID, Author: r.Author, Reason: r.Reason, Revision: s.revision()}
	r.Revision = c.Revision
	if before, ok := s.rule(r.ID); ok {
		c.Before, r.Created = &before, before.Created
	} else if what != "rollback" || r.Created.IsZero() {
		r.Created = now
	}
	if r.Ended = (time.Time{}); r.Off {
		r.Ended = now
		if c.Before != nil && c.Before.Off {
			r.Ended = cmp.Or(c.Before.Ended, now)
		}
	}
	if err := r.applicable(); err != nil {
		return r, err
	}
	c.After = &r
	data, err := json.Marshal(&r)
	if err != nil {
		return r, err
	}
	return r, s.write(ctx, &c, data)
}

func (s *shelf) remove(ctx context.Context, what, id, author, reason string) error {
	c := Change{What: what, At: time.Now().UTC().Truncate(time.Millisecond), Rule: id, Author: author, Reason: reason, Revision: s.revision()}
	if before, ok := s.rule(id); ok {
		c.Before = &before
	}
	return s.write(ctx, &c, nil)
}

// write writes a change to the history and then to the rules. A nil value removes the rule. The ID
// in the history has a random part, so that two processes that write the same revision at the same
// time do not overwrite each other's entry.
func (s *shelf) write(ctx context.Context, c *Change, data []byte) error {
	entry, err := json.Marshal(c)
	if err != nil {
		return err
	}
	id := fmt.Sprintf("%09d-%04x", c.Revision, rand.N(1<<16))
	if err := s.keeper.Keep(ctx, s.service, historyKind, id, entry); err != nil {
		return fmt.Errorf("write the history of %s: %w", s.service, err)
	}
	err = s.claim(ctx, id)
	if err == nil {
		if err = s.keeper.Keep(ctx, s.service, rulesKind, c.Rule, data); err != nil {
			err = fmt.Errorf("write the rule %s of %s: %w", c.Rule, s.service, err)
		}
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.keeper.Keep(undo, s.service, historyKind, id, nil) // the error above matters more
		return err
	}
	s.history[id] = entry
	if data == nil {
		delete(s.records, c.Rule)
	} else {
		s.records[c.Rule] = data
	}
	s.prune(ctx)
	return nil
}

// prune removes the oldest entries of the history. It ignores errors: the change has been made, and
// the next change prunes again.
func (s *shelf) prune(ctx context.Context) {
	ids := slices.Sorted(maps.Keys(s.history))
	for _, id := range ids[:max(len(ids)-maxHistory, 0)] {
		if s.keeper.Keep(ctx, s.service, historyKind, id, nil) != nil {
			return
		}
		delete(s.history, id)
	}
}

// asOf returns the rules that have changed since a revision, as they were then. A nil rule did not
// exist.
func (s *shelf) asOf(revision int) (map[string]*Rule, error) {
	then, oldest, newest := make(map[string]*Rule), s.revision(), s.revision()-1
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(s.history))) {
		var c Change
		if err := json.Unmarshal(s.history[id], &c); err != nil || c.Rule == "" {
			return nil, fmt.Errorf("the entry %s of the history cannot be read: %w", id, cmp.Or(err, ErrNoRule))
		}
		if c.Revision <= revision {
			oldest = c.Revision
			break
		}
		then[c.Rule], oldest = c.Before, c.Revision
	}
	if revision < 0 || revision > newest || oldest > revision+1 {
		return nil, fmt.Errorf("roll %s back to revision %d: the history has %d to %d: %w", s.service, revision, oldest, newest, ErrNoRule)
	}
	return then, nil
}
