// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

func folder(addr string) rules.Registry { return file.New(addr, nil) }

func TestEveryKindMovesProcesses(t *testing.T) {
	governed.EveryKind(t, governed.Registry{Addr: t.TempDir(), Open: folder})
}

func TestRulesSurviveRestarts(t *testing.T) {
	governed.Restarts(t, governed.Registry{Addr: t.TempDir(), Open: folder})
}

func TestChangesLoseNoCall(t *testing.T) {
	t.Attr("rerun", "never")
	governed.Changes(t, governed.Registry{Addr: t.TempDir(), Open: folder})
}
