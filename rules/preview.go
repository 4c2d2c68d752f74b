// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Traffic is what Preview knows of a service: its instances, and the live data of each instance by
// address. Instances without live data count as idle.
type Traffic struct {
	Instances []yodel.Instance
	Live      map[string]*introspect.Live
}

// An Effect is what a rule would do to the traffic of the last minutes. Rates are calls per second.
// All numbers are estimates.
type Effect struct {
	// Calls is the rate of the service, and Matched that of the calls in the rule's scope.
	Calls   float64 `json:"calls"`
	Matched float64 `json:"matched"`
	// Moved is the rate of the calls that would go to another instance, and Refused the rate of
	// those that would not be executed.
	Moved   float64 `json:"moved"`
	Refused float64 `json:"refused"`
	// Shares has the instances, sorted by address.
	Shares   []Share   `json:"shares"`
	Problems []Problem `json:"problems,omitempty"` // those of Check, and those that the traffic shows
	// Text is the effect in a sentence, for example "10 of 100 calls/s move to version v2".
	Text string `json:"text"`
}

// A Share is the traffic of an instance before and after a rule.
type Share struct {
	Addr     string  `json:"addr"`
	Version  string  `json:"version,omitempty"`
	Before   float64 `json:"before"`
	After    float64 `json:"after"`
	Selected bool    `json:"selected,omitempty"` // the rule's target selects it
}

// Preview computes what a rule would do. All are the rules of the service that exist: Preview
// leaves out a rule with the ID of rule.
func Preview(rule *Rule, all []Rule, traffic *Traffic) *Effect { return &Effect{} }
