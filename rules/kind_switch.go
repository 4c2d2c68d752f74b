// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
)

// A Switch is a named value that programs ask for: see Rules.Switch. The scope of its rule is
// empty. If several rules set the same switch, the one with the last ID decides.
type Switch struct {
	Name string `json:"name"`
	On   bool   `json:"on"`
}

var switchKind = kind{
	name:    "switch",
	set:     func(r *Rule) bool { return r.Switch != nil },
	form:    form{start: `{"on":true}`},
	sides:   inPrograms,
	decides: lastRule,
	same:    func(r, o *Rule) bool { return r.Switch.Name == o.Switch.Name },
	check:   checkSwitch,
	does: func(r *Rule, _ string) string {
		to := "off"
		if r.Switch.On {
			to = "on"
		}
		return fmt.Sprintf("Switch %q %s for %s", r.Switch.Name, to, r.Service)
	},
	fill: func(t *table, r *Rule) {
		if t.switches == nil {
			t.switches = make(map[string]bool)
		}
		t.switches[r.Switch.Name] = r.Switch.On
	},
}

func checkSwitch(c *checker, r *Rule) {
	c.text("switch.name", r.Switch.Name, true)
	for _, p := range []part{{"method", r.Method}, {"caller", r.Caller}, {"tenant", r.Tenant}, {"network", r.Network}} {
		if p.value != "" {
			c.addf("YDL-R010", p.name, "leave the scope empty", "a switch does not act on calls")
		}
	}
	for name, values := range map[string]map[string]string{"header": r.Header, "identity": r.Identity} {
		if len(values) > 0 {
			c.addf("YDL-R010", name, "leave the scope empty", "a switch does not act on calls")
		}
	}
}
