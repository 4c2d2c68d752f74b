// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/middleware/fault"
)

// A Fault makes calls slow or makes them fail on purpose.
type Fault struct {
	Percent float64  `json:"percent,omitempty"` // of the calls in the scope; 0 means all
	Delay   Duration `json:"delay,omitempty"`
	Jitter  Duration `json:"jitter,omitempty"` // bound of a random time that is added to Delay
	Code    string   `json:"code,omitempty"`   // of the error, for example "unavailable"
	Message string   `json:"message,omitempty"`
	Lose    string   `json:"lose,omitempty"` // "request" or "reply": the call fails as if the connection was lost
}

var faultKind = kind{
	name:  "fault",
	set:   func(r *Rule) bool { return r.Fault != nil },
	form:  form{start: `{"percent":10,"delay":"100ms"}`, ends: true},
	sides: clientsOrServers,
	place: place{server: 50, beneath: 10},
	check: func(c *checker, r *Rule) { c.fault(r.Fault) },
	does:  func(r *Rule, calls string) string { return r.Fault.sentence(calls) },
	build: func(a *active) { a.faults() },
	executes: func(r *Rule, _ float64, _ int) float64 {
		if r.Fault.Code == "" && r.Fault.Lose != "request" {
			return 1
		}
		return 1 - cmp.Or(r.Fault.Percent, 100)/100
	},
	stops: func(r *Rule) (some, all bool) {
		f := r.Fault
		return true, (f.Percent == 0 || f.Percent == 100) && (f.Code != "" || f.Lose != "")
	},
}

func (c *checker) fault(f *Fault) {
	c.number("fault.percent", f.Percent, 0, 100)
	if f.Percent > 0 && f.Percent < 0.01 {
		c.addf("YDL-R006", "fault.percent", "use at least 0.01", "%v is too small", f.Percent)
	}
	c.duration("fault.delay", f.Delay, 0, time.Hour)
	c.duration("fault.jitter", f.Jitter, 0, time.Hour)
	c.text("fault.message", f.Message, false)
	c.code("fault.code", f.Code)
	if f.Lose != "" && f.Lose != "request" && f.Lose != "reply" {
		c.word("fault.lose", f.Lose, "request", "reply")
	}
	switch {
	case f.Code != "" && f.Lose != "":
		c.addf("YDL-R010", "fault", "set one of code and lose", "it has both")
	case f.Code == "" && f.Lose == "" && f.Delay == 0 && f.Jitter == 0:
		c.addf("YDL-R009", "fault", "set delay, code or lose", "it does nothing")
	}
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

// faults makes the injector of a Fault.
func (a *active) faults() {
	f, injector := a.Fault, new(fault.Injector)
	if err := injector.Set(fault.Rule{
		Name: a.ID, Percent: f.Percent, Delay: time.Duration(f.Delay), Jitter: time.Duration(f.Jitter),
		Code: codes[f.Code], Message: f.Message, Lose: fault.Loss(f.Lose),
	}); err != nil {
		return // Check refuses such a rule
	}
	a.countsItself = true
	a.injected = func() uint64 { return injector.Rules()[0].Injected }
	a.around(injector.Calls)
}
