// SPDX-License-Identifier: Apache-2.0

package heritage_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/heritage"
)

func fields(v *heritage.Values) heritage.Fields {
	return heritage.Fields{Criticality: &v.Criticality, Tenant: &v.Tenant, Trace: &v.Trace, Explain: &v.Explain}
}

func TestACallInheritsWhatItHasNotSetUntilItEnds(t *testing.T) {
	full := heritage.Values{Criticality: -1, Tenant: "theirs", Trace: "00-1", Explain: true}
	for _, test := range []struct{ from, own, want heritage.Values }{
		{full, heritage.Values{}, full},
		{full, heritage.Values{Tenant: "own", Criticality: 2}, heritage.Values{Criticality: 2, Tenant: "own", Trace: "00-1", Explain: true}},
		{full, heritage.Values{Criticality: 1, Tenant: "own", Trace: "00-2", Explain: true}, heritage.Values{Criticality: 1, Tenant: "own", Trace: "00-2", Explain: true}},
		{heritage.Values{}, heritage.Values{Tenant: "own"}, heritage.Values{Tenant: "own"}},
		{heritage.Values{}, heritage.Values{}, heritage.Values{}},
	} {
		var h heritage.Heritage
		h.Set(test.from)
		var inherited heritage.Inherited
		call := test.own
		if inherited.Inherit(&h, fields(&call)); call != test.want {
			t.Errorf("%+v from %+v became %+v, want %+v", test.own, test.from, call, test.want)
		}
		if inherited.Reset(fields(&call)); call != test.own || inherited != (heritage.Inherited{}) {
			t.Errorf("%+v ended as %+v, with %+v", test.own, call, inherited)
		}
	}
}

func TestTheCallsOfAHandlerShareItsBudget(t *testing.T) {
	var h heritage.Heritage
	h.Set(heritage.Values{Budget: 4})
	b := h.Tokens()
	if b == nil || b.Left() != 3 || h.Used() != 0 {
		t.Fatalf("got %v, %d used", b, h.Used())
	}
	if b.Take(); h.Used() != 1 {
		t.Errorf("%d used, want 1", h.Used())
	}
	if lent := b.Lend(0); lent != 2 || h.Used() != 3 {
		t.Errorf("%d lent, %d used", lent, h.Used())
	}
	b.Set(5) // a server returned more than it got
	if h.Used() != 0 {
		t.Errorf("%d used, want 0", h.Used())
	}
	var none *heritage.Heritage
	for _, h := range []*heritage.Heritage{none, {}} {
		if h.Tokens() != nil || h.Used() != 0 {
			t.Errorf("%+v has a budget", h)
		}
	}
}
