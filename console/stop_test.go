// SPDX-License-Identifier: Apache-2.0

package console

import (
	"testing"

	"github.com/yodel-rpc/yodel/rules"
)

// A user stops a service with the form of a rule, which asks for the name of the service, sees on
// the Overview which rule has stopped it, and takes the rule back from there.
func TestBrowserStopsAServiceAndUndoesIt(t *testing.T) {
	b, s, _, base := newBrowserOf(t, nil)
	book, err := rules.Open(s.registry)
	must(t, err)
	stored := func() int {
		all, err := book.List(t.Context(), "Stock")
		must(t, err)
		return len(all)
	}
	const ask, submit = "form [name=confirm]", "document.querySelector('form [type=submit]')"
	b.open(base+"/rules?new=disable&service=Stock", "of the calls of Stock would not be executed")
	b.fill("form [name=reason]", "a test")
	for _, typed := range []string{"", "stock"} {
		if typed != "" {
			b.fill(ask, typed)
		}
		b.until("!" + submit + ".disabled")
		b.click("form [type=submit]")
		b.waitFor("Type Stock to go on all the same")
		b.until(`document.querySelector("form [name=confirm]").value === ""`) // it has been refused
		if stored() != 0 {
			t.Fatalf("the rule is stored when %q is typed", typed)
		}
	}
	b.fill(ask, "Stock")
	b.until("!" + submit + ".disabled")
	b.click("form [type=submit]")
	eventually(t, "the rule is stored", func() bool { return stored() == 1 })
	b.mu.Lock()
	if len(b.faults) != 2 { // the browser reports each 409
		t.Errorf("want two refusals, got %q", b.faults)
	}
	b.faults = nil
	b.mu.Unlock()
	b.open(base+"/", "stops all calls")
	b.click("[data-undo-rule]")
	b.fill("[name=undoreason]", "it was a test")
	b.press("Enter")
	eventually(t, "the rule is removed", func() bool { return stored() == 0 })
	b.check("undo")
}
