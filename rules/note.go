// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

// This file adds the changes of rules to the live data of the process, as events. If there are few,
// each has an event of its own. If rules change all the time, one event counts the changes within a
// period, and the period grows. So they do not displace other events.

// Limits of events.
const (
	maxSingle = 8  // changes within a period that have an event each
	maxEarly  = 64 // events that wait for a client or a server
	maxListed = 3  // rules in an event for many changes

	firstPeriod = time.Second
	lastPeriod  = time.Minute
)

// notes is the events of a service. The lock of the service guards it.
type notes struct {
	states map[string]introspect.RuleState // what the last events say, by ID

	count  int                // changes without an event
	single []introspect.Event // the first of them
	listed []string           // the IDs of some of them
	by     string             // the author of all of them, or "" if there are several

	period time.Duration
	until  time.Time // the end of the period

	to    map[*noter]bool
	early []introspect.Event // events that no noter has got
}

// A noter is a client or a server that follows the rules.
type noter struct{ note func(introspect.Event) }

// join makes note get the events until leave is called, and those that nothing has got yet.
func (s *service) join(note func(introspect.Event)) (leave func()) {
	n := &noter{note}
	s.mu.Lock()
	s.notes.to[n] = true
	early := s.notes.early
	s.notes.early = nil
	s.mu.Unlock()
	for _, e := range early {
		note(e)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.notes.to, n)
	}
}

// publish passes events to the clients and servers. The caller does not hold the lock.
func (s *service) publish(events []introspect.Event) {
	if len(events) == 0 {
		return
	}
	s.mu.Lock()
	to := make([]*noter, 0, len(s.notes.to))
	for n := range s.notes.to {
		to = append(to, n)
	}
	if len(to) == 0 {
		s.notes.early = append(s.notes.early, events...)
		s.notes.early = slices.Delete(s.notes.early, 0, max(len(s.notes.early)-maxEarly, 0))
	}
	s.mu.Unlock()
	for _, n := range to {
		for _, e := range events {
			n.note(e)
		}
	}
}

// noteLocked returns the events that are due, and the time until it has to be called again.
func (s *service) noteLocked(now time.Time) (due []introspect.Event, next time.Duration) {
	states := make(map[string]introspect.RuleState)
	for _, state := range s.statesLocked(now) {
		states[state.ID] = state
		if what, by := s.changeLocked(s.notes.states[state.ID], state); what != "" {
			s.notes.add(s.name, state.ID, introspect.Event{At: now, What: what, By: by})
		}
	}
	for id, before := range s.notes.states {
		if _, ok := states[id]; !ok && before.State != "off" && before.State != "expired" {
			s.notes.add(s.name, id, introspect.Event{At: now, What: "removed: the history of " + s.name + " says by whom, and why"})
		}
	}
	s.notes.states = states
	return s.notes.due(s.name, now)
}

// changeLocked says what has happened to a rule, and who has done it. It returns "" if the process
// applies the rule as before.
func (s *service) changeLocked(before, now introspect.RuleState) (what, by string) {
	a := s.known[now.ID]
	acted := before.State == "active" || before.State == "invalid"
	switch {
	case before.State == now.State && before.Revision == now.Revision && before.Problem == now.Problem:
		return "", ""
	case now.State == "invalid" && a == nil:
		return "refused: " + now.Problem, s.rejected[now.ID]
	case now.State == "invalid":
		return fmt.Sprintf("refused, and revision %d stays: %s", now.Revision, now.Problem), s.rejected[now.ID]
	case now.State == "rolled back":
		return "rolled back: " + now.Problem, autoRollback
	case now.State == "active" && before.State == "active":
		return "changed: " + a.summary(), a.Author
	case now.State == "active":
		return "in force: " + a.summary(), a.Author
	case now.State == "expired" && acted:
		return "expired: " + a.summary(), "expiry"
	case now.State == "off" && acted:
		return fmt.Sprintf("switched off: %s (revision %d)", a.Reason, a.Revision), a.Author
	}
	return "", ""
}

// summary describes a rule in an event.
func (a *active) summary() string {
	does := a.does()
	return fmt.Sprintf("%s%s: %s (revision %d)", strings.ToLower(does[:1]), does[1:], a.Reason, a.Revision)
}

// authorOf returns the author in a record that is not a valid rule, or "".
func authorOf(record []byte) string {
	var r struct {
		Author string `json:"author"`
	}
	if json.Unmarshal(record, &r) != nil {
		return ""
	}
	c := &checker{}
	if c.text("author", r.Author, true); len(c.found) > 0 {
		return ""
	}
	return r.Author
}

// add adds the event of a change.
func (n *notes) add(service, id string, e introspect.Event) {
	e.Kind, e.Object = "rule", service+"/"+id
	if n.count++; n.count == 1 {
		n.by = e.By
	} else if n.by != e.By {
		n.by = ""
	}
	if n.count <= maxSingle {
		n.single = append(n.single, e)
	}
	if len(n.listed) < maxListed && !slices.Contains(n.listed, id) {
		n.listed = append(n.listed, id)
	}
}

// due returns the events of the changes, unless a period that began with the last events has not
// ended, and the time until it has to be called again.
func (n *notes) due(service string, now time.Time) (events []introspect.Event, next time.Duration) {
	if n.count == 0 {
		return nil, time.Hour
	}
	if wait := n.until.Sub(now); wait > 0 {
		return nil, wait
	}
	if now.Sub(n.until) < n.period {
		n.period = min(2*n.period, lastPeriod)
	} else {
		n.period = firstPeriod
	}
	n.until = now.Add(n.period)
	events = n.single
	if n.count > maxSingle {
		what := fmt.Sprintf("%d changes of the rules of %s: %s and others; the history has all", n.count, service, strings.Join(n.listed, ", "))
		events = []introspect.Event{{At: now, Kind: "rule", Object: service, What: what, By: n.by}}
	}
	n.count, n.single, n.listed = 0, nil, nil
	return events, time.Hour
}
