// SPDX-License-Identifier: Apache-2.0

package introspect

// An Outcome is what the end of a call says about the service. All rates, shares, charts, alerts
// and rules use the same outcomes.
type Outcome int

const (
	// Answered calls succeeded, or failed for a reason of the caller's, such as not_found.
	Answered Outcome = iota
	// Failed calls ended with unavailable, deadline_exceeded, internal, data_loss or unknown, or
	// were refused by a rule of an operator: see Disabled.
	Failed
	// Limited calls were refused by a limit: resource_exhausted.
	Limited
	// Canceled calls were given up by their caller, or lost against a hedged request. They count as
	// neither success nor failure.
	Canceled
)

// Disabled is the name under which calls are counted that a rule of the kind disable refused. Their
// callers get failed_precondition, so that nothing calls again or blames an instance.
const Disabled = "disabled"

// failedCodes are the names of the codes with the outcome Failed.
var failedCodes = map[string]bool{Disabled: true, "unavailable": true, "deadline_exceeded": true, "internal": true, "data_loss": true, "unknown": true}

// OutcomeOf returns the outcome of a call by the name of its code. The name of success is "" or
// "ok".
func OutcomeOf(code string) Outcome {
	switch {
	case failedCodes[code]:
		return Failed
	case code == "resource_exhausted":
		return Limited
	case code == "canceled":
		return Canceled
	}
	return Answered
}
