// SPDX-License-Identifier: Apache-2.0

// Package heritage passes state of a handler's call down to the calls that the handler makes: the
// attempt budget, the criticality, the tenant, the trace and Explain.
package heritage

import "github.com/yodel-rpc/yodel/internal/budget"

// Values are the values of the fields of a call that its handler's calls inherit.
type Values struct {
	Budget      int // attempts; 0 for no limit
	Criticality int
	Tenant      string
	Trace       string
	Explain     bool
}

// A Heritage is the state that a handler's calls inherit from the handler's own call. The zero
// Heritage passes on nothing. After Set it may be used concurrently.
type Heritage struct {
	values Values
	budget budget.Tokens
	given  int32 // the number of tokens at the beginning
}

// Set makes h pass on v.
func (h *Heritage) Set(v Values) {
	h.values, h.given = v, budget.Of(max(v.Budget, 1))
	h.budget.Set(h.given)
}

// Tokens returns the budget that the handler's calls share, or nil if it has no limit. H may be
// nil.
func (h *Heritage) Tokens() *budget.Tokens {
	if h == nil || h.values.Budget <= 0 {
		return nil
	}
	return &h.budget
}

// Used returns how many tokens were used or lost by the handler's calls. H may be nil.
func (h *Heritage) Used() uint64 {
	b := h.Tokens()
	if b == nil {
		return 0
	}
	return uint64(max(h.given-b.Left(), 0))
}

// Fields are the fields of a call that inherits, except its budget.
type Fields struct {
	Criticality   *int
	Tenant, Trace *string
	Explain       *bool
}

// Inherited says which fields of a call were inherited. These fields are reset when the call ends.
type Inherited struct{ criticality, tenant, trace, explain bool }

// Inherit sets the fields of a call that are not set to those of h.
func (i *Inherited) Inherit(h *Heritage, f Fields) {
	v := &h.values
	if *f.Criticality == 0 && v.Criticality != 0 {
		*f.Criticality, i.criticality = v.Criticality, true
	}
	if *f.Tenant == "" && v.Tenant != "" {
		*f.Tenant, i.tenant = v.Tenant, true
	}
	if *f.Trace == "" && v.Trace != "" {
		*f.Trace, i.trace = v.Trace, true
	}
	if v.Explain && !*f.Explain {
		*f.Explain, i.explain = true, true
	}
}

// Reset undoes Inherit.
func (i *Inherited) Reset(f Fields) {
	if i.criticality {
		*f.Criticality = 0
	}
	if i.tenant {
		*f.Tenant = ""
	}
	if i.trace {
		*f.Trace = ""
	}
	if i.explain {
		*f.Explain = false
	}
	*i = Inherited{}
}
