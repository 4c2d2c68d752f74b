// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// A large fleet is read for seconds. The clock of an instance that has answered in that time is
// right.
func TestClocksAreComparedWithTheTimeOfTheRead(t *testing.T) {
	began := time.Now()
	read := span{began, began.Add(10 * time.Second)}
	for at, want := range map[time.Duration]string{0: "", 5 * time.Second: "", 10 * time.Second: "", -3 * time.Second: "differs by 3s", 14 * time.Second: "differs by 4s"} {
		in := &fleet.Instance{Instance: discovery.Instance{Addr: "10.0.0.1:1"}, Service: "Shop", State: fleet.Up, Live: &introspect.Live{Now: began.Add(at)}}
		var said []string
		for _, f := range ofInstance(in, make(map[string]bool), read) {
			said = append(said, f.What)
		}
		if got := strings.Join(said, ", "); !strings.HasSuffix(got, want) || (got == "") != (want == "") {
			t.Errorf("an answer of %v: got %q, want %q", at, got, want)
		}
	}
}
