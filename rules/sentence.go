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
	text := r.does() + "."
	if r.Off {
		text += " It is switched off."
	}
	if !r.Expires.IsZero() {
		text += " It ends at " + r.Expires.UTC().Format(time.RFC3339) + "."
	}
	if r.Rollback != nil {
		text += fmt.Sprintf(" It is switched off if fewer than %v %% of the calls succeed for %v.", r.Rollback.Below, r.Rollback.For)
	}
	return text
}

// does returns what the rule does, without a period.
func (r *Rule) does() string {
	calls := "the calls " + r.of()
	switch {
	case r.Weight != nil:
		return fmt.Sprintf("Give %s %d %% of their usual share of %s", &r.Weight.To, r.Weight.Percent, calls)
	case r.Canary != nil:
		text := fmt.Sprintf("Send %v %% of %s to %s", r.Canary.Percent, calls, &r.Canary.To)
		if r.Canary.By != "" {
			text += ", drawn by " + strings.Replace(r.Canary.By, "header:", "header ", 1)
		}
		return text
	case r.Route != nil && r.Route.Strict:
		return fmt.Sprintf("Send %s to %s only", calls, &r.Route.To)
	case r.Route != nil:
		return fmt.Sprintf("Send %s to %s", calls, &r.Route.To)
	case r.Disable != nil && r.Disable.To != nil:
		return fmt.Sprintf("Send none of %s to %s", calls, r.Disable.To)
	case r.Disable != nil && len(r.Disable.Except) > 0:
		return fmt.Sprintf("Refuse %s, except from %s", calls, strings.Join(r.Disable.Except, ", "))
	case r.Disable != nil:
		return "Refuse " + calls
	case r.Switch != nil && r.Switch.On:
		return fmt.Sprintf("Switch %q on for %s", r.Switch.Name, r.Service)
	case r.Switch != nil:
		return fmt.Sprintf("Switch %q off for %s", r.Switch.Name, r.Service)
	}
	return r.governs(calls)
}

// governs is does for rules that do not choose instances.
func (r *Rule) governs(calls string) string {
	switch {
	case r.Limit != nil:
		return r.Limit.sentence(calls)
	case r.Timeout != nil:
		return fmt.Sprintf("End %s after %v", calls, r.Timeout.After)
	case r.Retry != nil:
		return fmt.Sprintf("Make up to %d attempts for %s", r.Retry.Times, calls)
	case r.Hedge != nil && r.Hedge.After > 0:
		return fmt.Sprintf("Send a second attempt for %s that take longer than %v", calls, r.Hedge.After)
	case r.Hedge != nil:
		return fmt.Sprintf("Send a second attempt for %s that are slower than %v %% of them", calls, r.Hedge.Percentile)
	case r.Breaker != nil:
		return r.Breaker.sentence(calls)
	case r.Fault != nil:
		return r.Fault.sentence(calls)
	case r.Mock != nil && r.Mock.Code != "":
		return fmt.Sprintf("Answer %s with the error %s, without executing them", calls, r.Mock.Code)
	case r.Mock != nil:
		return fmt.Sprintf("Answer %s with a fixed reply, without executing them", calls)
	case r.Fallback != nil:
		return fmt.Sprintf("Answer %s with a fixed reply if they fail", calls)
	}
	return "Do nothing with " + calls
}

func (l *Limit) sentence(calls string) string {
	var parts []string
	if l.PerSecond > 0 {
		text := fmt.Sprintf("%v a second", l.PerSecond)
		if l.By != "" {
			text += " for each " + strings.Replace(l.By, "header:", "value of the header ", 1)
		}
		parts = append(parts, text)
	}
	if l.Concurrent > 0 {
		parts = append(parts, fmt.Sprintf("%d at a time", l.Concurrent))
	}
	return fmt.Sprintf("Limit %s to %s in each process", calls, strings.Join(parts, " and "))
}

func (b *Breaker) sentence(calls string) string {
	var parts []string
	if b.Errors > 0 {
		parts = append(parts, fmt.Sprintf("after %d failures in a row", b.Errors))
	}
	if b.Share > 0 || b.Errors == 0 {
		parts = append(parts, fmt.Sprintf("when %v %% of them fail", b.Share*100))
	}
	return fmt.Sprintf("Stop %s to an instance %s", calls, strings.Join(parts, " or "))
}

func (f *Fault) sentence(calls string) string {
	share := ""
	if f.Percent > 0 && f.Percent < 100 {
		share = fmt.Sprintf("%v %% of ", f.Percent)
	}
	var parts []string
	if f.Delay > 0 || f.Jitter > 0 {
		parts = append(parts, fmt.Sprintf("Delay %s%s by %v", share, calls, f.Delay+f.Jitter/2))
	}
	switch {
	case f.Code != "":
		parts = append(parts, fmt.Sprintf("make %s%s fail with %s", share, calls, f.Code))
	case f.Lose != "":
		parts = append(parts, fmt.Sprintf("lose the %s of %s%s", f.Lose, share, calls))
	}
	text := strings.Join(parts, " and ")
	return strings.ToUpper(text[:min(1, len(text))]) + text[min(1, len(text)):]
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
	if r.Tenant != "" {
		text += " for tenant " + r.Tenant
	}
	headers := make([]string, 0, len(r.Header))
	for _, key := range slices.Sorted(maps.Keys(r.Header)) {
		headers = append(headers, fmt.Sprintf(" with %s %q", key, r.Header[key]))
	}
	return text + strings.Join(headers, "")
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
