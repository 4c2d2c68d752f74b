// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Sentence returns the rule in words. An example is "Send 10 % of the calls of Shop to version v2."
// for a canary.
func (r *Rule) Sentence() string {
	text, active := r.does()+".", r.Active(time.Now())
	switch {
	case r.Off:
		text += " It is switched off."
	case !active:
		text += " It ended at " + r.Expires.UTC().Format(time.RFC3339) + "."
	case !r.Expires.IsZero():
		text += " It ends at " + r.Expires.UTC().Format(time.RFC3339) + "."
	}
	if r.Rollback != nil && active {
		text += fmt.Sprintf(" It is switched off if fewer than %v %% of the calls succeed for %v.", r.Rollback.Below, r.Rollback.For)
	}
	if k := r.kind(); k.afterwards != nil && (!active || !r.Expires.IsZero() || r.Rollback != nil) {
		text += " " + k.afterwards(r, active)
	}
	return text
}

// does returns what the rule does, without a period.
func (r *Rule) does() string { return r.kind().does(r, "the calls "+r.of()) }

// Across says what a limit in each process means for a service with so many instances, for
// example "24 a second on each of 3 instances: 72 in all". It is empty for rules of other kinds,
// for a limit in clients, of which there may be any number, and without instances.
func (r *Rule) Across(instances int) string {
	if k := r.kind(); k.across != nil && r.acts("server") && instances > 0 {
		return k.across(r, instances)
	}
	return ""
}

// of returns the scope in words, for example "of Shop.Get from web".
func (r *Rule) of() string {
	text := "of " + r.Service
	switch {
	case strings.Contains(r.Method, "."):
		text = "of " + r.Method
	case r.Method != "":
		text += "." + r.Method
	}
	if r.Caller != "" {
		text += " from " + r.Caller
	}
	if r.Network != "" {
		text += " from the network " + r.Network
	}
	if r.Tenant != "" {
		text += " for tenant " + r.Tenant
	}
	parts := []string{text}
	for _, key := range slices.Sorted(maps.Keys(r.Header)) {
		parts = append(parts, fmt.Sprintf(" with %s %q", key, r.Header[key]))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Identity)) {
		parts = append(parts, fmt.Sprintf(" by verified %s %q", strings.Replace(name, whoClaim, "claim ", 1), r.Identity[name]))
	}
	return strings.Join(parts, "")
}

// A part is a field of a Target.
type part struct{ name, value string }

func (t *Target) parts() []part {
	return []part{{"version", t.Version}, {"tag", t.Tag}, {"group", t.Group}, {"zone", t.Zone}, {"addr", t.Addr}}
}

// String returns the target in words, for example "version v2 in zone a".
func (t *Target) String() string {
	var texts []string
	for _, p := range t.parts() {
		if p.value != "" {
			texts = append(texts, p.name+" "+p.value)
		}
	}
	if len(texts) == 0 {
		return "no instance"
	}
	return strings.Join(texts, ", ")
}
