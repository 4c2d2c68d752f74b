// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"os/exec"
	"testing"

	"github.com/yodel-rpc/yodel/internal/pagetest"
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
	n := pagetest.Run(t, "../../docs/curl.md", &pagetest.Options{Replace: []string{"localhost:8972", start(t)}})
	if n < 20 {
		t.Errorf("the page has only %d commands", n)
	}
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
