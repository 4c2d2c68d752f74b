// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

const (
	sameMoment = 2 * time.Second  // several processes report one change within it
	beginning  = 5 * time.Second  // of a process
	sameBout   = 10 * time.Minute // an instance that is ejected again within it has not recovered
)

// A change is one event, or several that say the same.
type change struct {
	introspect.Event

	first, last time.Time // when the instance was first and last taken out of use
	times       int       // how often it was, by all clients
	out         bool      // it is out of use
}

// Changes returns what has happened according to events, the newest first. It sorts the events.
// What several processes report is in the result once, and so is a change of a rule with its entry
// in the history. The ejections of an instance for one cause, with the trials between them, are one
// event as well: the newest, with their number.
func Changes(events []introspect.Event) []introspect.Event {
	slices.SortStableFunc(events, func(a, b introspect.Event) int { return a.At.Compare(b.At) })
	var all []*change
	latest := make(map[string]*change)
	for i := range events {
		e := &events[i]
		keys := keysOf(e)
		if slices.ContainsFunc(keys, func(key string) bool { return latest[key].takes(e) }) {
			continue
		}
		c := &change{Event: *e, first: e.At, last: e.At, times: 1, out: holding[e.Kind]}
		for _, key := range keys {
			latest[key] = c
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b *change) int { return b.At.Compare(a.At) })
	out := make([]introspect.Event, len(all))
	for i, c := range all {
		out[i] = c.Event
		if c.times > 1 {
			out[i].What = fmt.Sprintf("%s; %d times in %s", c.What, c.times, Age(c.At.Sub(c.first)))
		}
	}
	return out
}

// holding has the kinds of the events about an instance that a client takes out of use, which is
// true, or uses again.
var holding = map[string]bool{"ejected": true, "not ready": true, "ready": false, "readmitted": false}

// keysOf returns the names under which an event is compared with others.
func keysOf(e *introspect.Event) []string {
	switch _, held := holding[e.Kind]; {
	case held:
		return []string{"held\n" + e.Object + "\n" + e.By}
	case e.Kind == "rule": // a rule may change several times within a moment
		return []string{"rule\n" + e.Object + "\n" + revision.FindString(e.What), "rule\n" + e.Object}
	}
	if e.Kind == "instance up" { // it has started, or is registered again
		return []string{"instance up\n" + e.Object, "start\n" + e.Object}
	}
	return []string{e.Kind + "\n" + e.Object}
}

// takes reports whether an event says nothing but what c says, or is a part of it.
func (c *change) takes(e *introspect.Event) bool {
	if c == nil {
		return false
	}
	after := e.At.Sub(c.At)
	out, held := holding[e.Kind]
	switch {
	case held:
		if after >= sameBout {
			return false
		}
		c.turn(e, out)
		return true
	case e.Kind == "rule":
		return c.takesRule(e, after < sameMoment)
	}
	return after < sameMoment
}

// turn adds an event to the ejections of an instance. An instance that is "ready" for a trial is
// still ejected. Of two events of a moment that say the same, "ejected" and "readmitted" stay,
// because they say why.
func (c *change) turn(e *introspect.Event, out bool) {
	if e.Kind == "ready" && c.Kind == "ejected" {
		return
	}
	if out && e.At.Sub(c.last) >= sameMoment {
		c.times, c.last = c.times+1, e.At
	}
	if out != c.out || e.Kind == "ejected" || e.Kind == "readmitted" {
		c.Event = *e
	}
	c.out = out
}

// takesRule reports whether an event is about the same change of a rule. Processes and the history
// report it, and the longer text says more.
func (c *change) takesRule(e *introspect.Event, soon bool) bool {
	was, is := revision.FindString(c.What), revision.FindString(e.What)
	switch {
	case was == is && is != "":
		if !soon {
			return strings.HasPrefix(e.What, "in force: ") // in a process that started later
		}
	case !soon || was != "" && is != "", e.By != c.By && !strings.HasPrefix(c.What, "remove: ") && !strings.HasPrefix(e.What, "remove: "):
		return false
	}
	if is != "" && (was == "" || len(e.What) > len(c.What)) {
		at := c.At
		c.Event = *e
		c.At = at
	}
	return true
}

var revision = regexp.MustCompile(`\(revision \d+\)$`)
