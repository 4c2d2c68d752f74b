// SPDX-License-Identifier: Apache-2.0

//go:build unix

package await_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/internal/leak"
)

// hangEnv makes the test binary a process that prints a line and then hangs.
const hangEnv = "YODEL_AWAIT_HANG"

func TestMain(m *testing.M) {
	if os.Getenv(hangEnv) != "" {
		time.AfterFunc(time.Hour, func() {}) // so that the runtime does not find the deadlock
		hangHere(make(chan struct{}))
	}
	leak.Verify(m)
}

//go:noinline
func hangHere(never chan struct{}) {
	fmt.Println("ready") // not earlier: on a busy machine the signal comes before the wait
	<-never
}

// A wait for a process that hangs ends with the stacks of both sides.
func TestAWaitForAHangingProcessShowsBothStacks(t *testing.T) {
	cmd := await.Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), hangEnv+"=1")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if line, err := await.Line(lines, "the first line", cmd.Process); line != "ready" || err != nil {
		t.Fatalf("got %q, %v", line, err)
	}
	err = await.Within(10*time.Millisecond, "the second line", func() { lines.Scan() }, cmd.Process)
	if err == nil || !strings.Contains(err.Error(), "waits for the second line") || !strings.Contains(err.Error(), "TestAWaitForAHangingProcessShowsBothStacks") {
		t.Errorf("got %v", err)
	}
	if line, err := await.Line(lines, "the end", cmd.Process); err == nil || !strings.Contains(err.Error(), "the process ended before the end") {
		t.Errorf("got %q, %v", line, err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended without an error")
	}
	if !strings.Contains(said.String(), "SIGQUIT") || !strings.Contains(said.String(), "hangHere") {
		t.Errorf("the process printed no stacks: %s", said.String())
	}
}

// A deadline is a test whose package has a time-out.
type deadline struct {
	testing.TB
	at time.Time
}

func (d deadline) Deadline() (time.Time, bool) { return d.at, true }

// Shortly before the time-out of the package, the processes print their stacks.
func TestAProcessPrintsItsStacksBeforeTheTimeout(t *testing.T) {
	cmd := await.Command(deadline{t, time.Now().Add(16 * time.Second)}, os.Args[0])
	cmd.Env = append(os.Environ(), hangEnv+"=1")
	said, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "SIGQUIT") || !strings.Contains(string(said), "hangHere") {
		t.Errorf("got %v, %s", err, said)
	}
}
