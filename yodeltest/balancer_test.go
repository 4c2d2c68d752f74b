// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"strconv"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
)

func TestBalancerSuitePassesTheRoots(t *testing.T) { TestBalancer(t, yodel.RoundRobin) }

// A badPicker is broken in a way that its function says.
type badPicker func(*yodel.Call) *yodel.Endpoint

func (f badPicker) Pick(call *yodel.Call) *yodel.Endpoint { return f(call) }

func TestBalancerRulesCatchFaults(t *testing.T) {
	var kept []*yodel.Endpoint
	var sink []string
	for _, fault := range []struct {
		rule, name string
		balance    yodel.Balancer
	}{
		{"empty set", "it panics", func(all []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
			return badPicker(func(*yodel.Call) *yodel.Endpoint { return all[0] })
		}},
		{"empty set", "there is no picker", func([]*yodel.Endpoint, yodel.Picker) yodel.Picker { return nil }},
		{"one endpoint", "every other pick is nil", func(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
			n, p := 0, yodel.RoundRobin(all, nil)
			return badPicker(func(call *yodel.Call) *yodel.Endpoint {
				if n++; n%2 == 0 {
					return nil
				}
				return p.Pick(call)
			})
		}},
		{"avoids", "it does not ask", func(all []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
			return badPicker(func(*yodel.Call) *yodel.Endpoint { return all[0] })
		}},
		{"nil only if all are avoided", "it gives up after one", func(all []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
			return badPicker(func(call *yodel.Call) *yodel.Endpoint {
				if call.Attempts().Avoids(all[0]) {
					return nil
				}
				return all[0]
			})
		}},
		{"changes", "it keeps the first set", func(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
			if last == nil {
				kept = all
			}
			return yodel.RoundRobin(kept, nil)
		}},
		{"concurrency", "it waits for ever", func(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
			var mu sync.Mutex
			p := yodel.RoundRobin(all, nil)
			return badPicker(func(call *yodel.Call) *yodel.Endpoint {
				mu.Lock()
				defer mu.Unlock()
				if len(all) == 2 {
					return nil
				}
				return p.Pick(call)
			})
		}},
		{"no allocations", "it makes a string", func(all []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
			p := yodel.RoundRobin(all, nil)
			return badPicker(func(call *yodel.Call) *yodel.Endpoint {
				sink = append(sink[:0], strconv.Itoa(len(call.Method)*1000)+call.Key)
				return p.Pick(call)
			})
		}},
	} {
		t.Run(fault.rule+", "+fault.name, func(t *testing.T) {
			for _, r := range balancerRules(fault.balance) {
				if r.name == fault.rule && r.broken() == nil {
					t.Errorf("%s: the rule does not notice", fault.name)
				}
			}
		})
	}
}
