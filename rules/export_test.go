// SPDX-License-Identifier: Apache-2.0

package rules

// RolledBack is the change that a process makes when a Rollback condition is broken.
var RolledBack = (*Book).rolledBack

// Problems is the table of problems.
var Problems = problems

// ActsIn returns where docs/rules.md says that the rules of each kind act.
func ActsIn() map[string][]string {
	in := make(map[string][]string)
	for _, k := range kinds {
		where := map[sides][]string{
			inClients: {"client"}, clientsOrServers: {"client; `side`"}, serversOrClients: {"server; `side`"},
			onBothSides: {"client", "both"}, // with a target, and without
			inPrograms:  {"program"},
		}
		in[k.name] = where[k.sides]
	}
	return in
}

// Order returns the kinds in the order in which they act, the outermost first.
func Order() map[string][]string {
	order := make(map[string][]string)
	for chain, at := range map[string]func(k *kind) int{
		"calls of a client": func(k *kind) int { return k.place.calls },
		"calls of a server": func(k *kind) int { return k.place.server },
		"attempts on an instance": func(k *kind) int {
			if k.place.beneath > 0 {
				return 1000 + k.place.beneath
			}
			return k.place.attempts
		},
		"choice of an instance": func(k *kind) int {
			if k.routes == nil {
				return 0
			}
			return k.routes.order
		},
	} {
		for _, k := range stages(at) {
			order[chain] = append(order[chain], k.name)
		}
	}
	return order
}
