// SPDX-License-Identifier: Apache-2.0

package introspect

import "time"

// Rules is the rules that a process follows. The built-in method yodel.Rules returns it.
type Rules struct {
	Name  string      `json:"name,omitempty"` // of the process, as a caller in the scope of rules
	Rules []RuleState `json:"rules"`
}

// A RuleState is a rule as one process applies it.
type RuleState struct {
	Service  string `json:"service"`
	ID       string `json:"id"`
	Kind     string `json:"kind"`
	Revision int    `json:"revision"`
	// State is "active", "off", "expired", "rolled back", or "invalid". An invalid rule does not
	// act. If there was a valid one with its ID before, that one acts, and Revision is its
	// revision.
	State string `json:"state"`
	// Problem says why the rule is invalid or was rolled back.
	Problem string `json:"problem,omitempty"`
	// Since is when the process began to apply this revision.
	Since time.Time `json:"since,omitzero"`
	// Hits counts the calls on which the rule acted, since the process knows its ID. Good and Bad
	// count the outcomes of such calls, for a rule with a rollback condition.
	Hits uint64 `json:"hits"`
	Good uint64 `json:"good,omitempty"`
	Bad  uint64 `json:"bad,omitempty"`
	// Held says why the instances of an active canary took less than half of the calls that were
	// meant for them lately, for example "held back by outlier: …". Empty if they took more.
	Held string `json:"held,omitempty"`
}
