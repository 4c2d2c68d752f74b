// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/etcd"
	"github.com/yodel-rpc/yodel/rules"
)

// opened opens a registry for a process of the tests of rules, which lasts as long as the process.
func opened(addr string) rules.Registry { return etcd.New(addr, nil) }

// ruled returns a registry with a server of its own.
func ruled(t *testing.T) governed.Registry {
	t.Helper()
	s := realserver.Etcd(t)
	return governed.Registry{Addr: s.Addr, Restart: s.Restart, Open: func(addr string) rules.Registry {
		r := etcd.New(addr, nil)
		t.Cleanup(func() { must(t, r.Close()) })
		return r
	}}
}

func TestRulesMoveProcesses(t *testing.T) { governed.SomeKinds(t, ruled(t)) }

func TestRulesSurviveRestarts(t *testing.T) { governed.Restarts(t, ruled(t)) }

func TestChangesOfRulesLoseNoCall(t *testing.T) {
	t.Attr("rerun", "never")
	governed.Changes(t, ruled(t))
}
