// SPDX-License-Identifier: Apache-2.0

package aside_test

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/middleware/internal/aside"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestDoOutlivesWhatItCalls(t *testing.T) {
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	if err := aside.Do("a hook", log, func() {}); err != nil || said.Len() > 0 {
		t.Errorf("a function that returns: %v, %s", err, &said)
	}
	if err := aside.Do("a hook", log, func() { panic("no") }); err == nil || !strings.Contains(said.String(), "a hook panicked") {
		t.Errorf("a panic: %v, %s", err, &said)
	}
	if err := aside.Do("a hook", log, runtime.Goexit); err == nil || !strings.Contains(said.String(), "a hook ended its goroutine") {
		t.Errorf("an exit: %v, %s", err, &said)
	}
}
