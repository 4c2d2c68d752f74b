// SPDX-License-Identifier: Apache-2.0

// Package connect runs the conformance tests of Connect against yodel: gRPC, gRPC-Web and Connect,
// over HTTP/1 and HTTP/2, with TLS and without it, in both encodings and five compressions. No
// failure is expected or ignored.
package connect_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

// The numbers of cases that the suite had when this test was written.
const (
	allServerCases = 9022
	allClientCases = 11036
)

// The numbers of cases without YODEL_REAL=all.
const (
	leastServerCases = 6406
	leastClientCases = 7934
)

// shorter has calls over TLS use two of the five compressions, because TLS carries the same bytes
// with each of them. Calls without TLS use all five.
const shorter = `
excludeCases:
  - {useTls: true, compression: COMPRESSION_ZSTD}
  - {useTls: true, compression: COMPRESSION_DEFLATE}
  - {useTls: true, compression: COMPRESSION_SNAPPY}
`

// all reports whether the suite runs all cases, as in make before-end.
func all() bool { return os.Getenv("YODEL_REAL") == "all" }

func TestClient(t *testing.T) {
	runner := realserver.Tool(t, "connectconformance", "connectrpc.com/conformance/cmd/connectconformance")
	least := leastClientCases
	if all() {
		least = allClientCases
	}
	if passed := conformance(t, runner, "client", "client.yaml", build(t, "./client")); passed < least {
		t.Errorf("%d cases passed, and there were %d", passed, least)
	}
}

func TestServer(t *testing.T) {
	runner := realserver.Tool(t, "connectconformance", "connectrpc.com/conformance/cmd/connectconformance")
	least := leastServerCases
	if all() {
		least = allServerCases
	}
	if passed := conformance(t, runner, "server", "server.yaml", build(t, "./server")); passed < least {
		t.Errorf("%d cases passed, and there were %d", passed, least)
	}
}

// build builds a program of this module.
func build(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", path, pkg).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return path
}

var totals = regexp.MustCompile(`(?m)^(\d+) passed, 0 failed$`)

// conformance runs the suite and returns how many cases passed.
func conformance(t *testing.T, runner, mode, config, program string) (passed int) {
	t.Helper()
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if !all() {
		text = append(text, shorter...)
	}
	config = filepath.Join(t.TempDir(), config)
	if err = os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
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
