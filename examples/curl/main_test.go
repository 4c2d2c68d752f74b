// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// Each command of the page prints what the page shows, in the order of the page.
func TestCommandsOfThePage(t *testing.T) {
	for _, program := range []string{"sh", "curl", "gzip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the page needs %s: %v", program, err)
		}
	}
	if exec.CommandContext(t.Context(), "curl", "--json", "{}", "--version").Run() != nil {
		t.Skip("the page needs curl 7.84")
	}
	page, err := os.ReadFile("../../docs/curl.md")
	if err != nil {
		t.Fatal(err)
	}
	addr := start(t)
	n := 0
	for _, block := range strings.Split(string(page), "```console\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, step := range strings.Split("\n"+block, "\n$ ")[1:] {
			command, want := cutCommand(step)
			cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.ReplaceAll(command, "localhost:8972", addr))
			out, err := cmd.Output()
			got := strings.ReplaceAll(string(out), "\r\n", "\n")
			if err != nil || strings.TrimSpace(got) != strings.TrimSpace(want) {
				t.Errorf("$ %s\nprints\n%s\nwant\n%s\nerror: %v", command, got, want, err)
			}
			n++
		}
	}
	if n < 20 {
		t.Errorf("the page has only %d commands", n)
	}
}

// cutCommand divides a command, whose lines but the last end with a backslash, from what it prints.
func cutCommand(step string) (command, prints string) {
	lines := strings.SplitAfter(step, "\n")
	n := 1
	for n < len(lines) && strings.HasSuffix(lines[n-1], "\\\n") {
		n++
	}
	return strings.TrimSpace(strings.Join(lines[:n], "")), strings.Join(lines[n:], "")
}

// start starts the server and returns its address.
func start(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- newServer().Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}
