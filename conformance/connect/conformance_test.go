// SPDX-License-Identifier: Apache-2.0

// Package connect runs the conformance tests of Connect against yodel: gRPC, gRPC-Web and Connect,
// over HTTP/1 and HTTP/2, with TLS and without it, in both encodings and five compressions. No
// failure is expected or ignored.
package connect_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

// The numbers of cases that the suite had when this test was written.
const (
	leastServerCases = 9022
	leastClientCases = 11036
)

func TestClient(t *testing.T) {
	runner := realserver.Tool(t, "connectconformance", "connectrpc.com/conformance/cmd/connectconformance")
	if passed := conformance(t, runner, "client", "client.yaml", build(t, "./client")); passed < leastClientCases {
		t.Errorf("%d cases passed, and there were %d", passed, leastClientCases)
	}
}

func TestServer(t *testing.T) {
	runner := realserver.Tool(t, "connectconformance", "connectrpc.com/conformance/cmd/connectconformance")
	if passed := conformance(t, runner, "server", "server.yaml", build(t, "./server")); passed < leastServerCases {
		t.Errorf("%d cases passed, and there were %d", passed, leastServerCases)
	}
}

// build builds a program of this module.
func build(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, pkg).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return path
}

var totals = regexp.MustCompile(`(?m)^(\d+) passed, 0 failed$`)

// conformance runs the suite and returns how many cases passed.
func conformance(t *testing.T, runner, mode, config, program string) (passed int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), runner, "--conf", config, "--mode", mode, "--", program)
	realserver.EndWithParent(cmd)
	out, err := cmd.CombinedOutput()
	found := totals.FindSubmatch(out)
	if err != nil || found == nil {
		const most = 16 << 10
		t.Fatalf("%v\n%s", err, out[max(0, len(out)-most):])
	}
	t.Log(strings.TrimSpace(string(found[0])))
	for _, digit := range found[1] {
		passed = 10*passed + int(digit-'0')
	}
	return passed
}
