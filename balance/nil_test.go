// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
)

// What a balancer cannot do without is missed when it is made, and not by the first call.
func TestNilIsRefusedAtConstruction(t *testing.T) {
	for name, construct := range map[string]func(){
		"Bounded":   func() { balance.Bounded(1.25, nil) },
		"Jump":      func() { balance.Jump(nil) },
		"Ketama":    func() { balance.Ketama(nil) },
		"Maglev":    func() { balance.Maglev(nil) },
		"Panic":     func() { balance.Panic(0.5, nil) },
		"SlowStart": func() { balance.SlowStart(time.Second, nil) },
		"Zone":      func() { balance.Zone("a", nil) },
		"Where":     func() { balance.Where(nil, yodel.RoundRobin) },
		"a filter":  func() { balance.Group("a", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				if !strings.HasPrefix(text, "balance: "+name+" with a nil ") {
					t.Errorf("it panicked with %q", text)
				}
			}()
			construct()
		})
	}
}
