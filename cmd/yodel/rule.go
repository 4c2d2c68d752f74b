// SPDX-License-Identifier: Apache-2.0

package main

import "context"

// rules returns the kinds of the active rules by service. It returns nothing if the registry keeps
// no rules.
func (t *target) rules(context.Context, string) map[string][]string { return nil }

// ruleLines returns the active rules of a service in words.
func (t *target) ruleLines(context.Context, string) []string { return nil }
