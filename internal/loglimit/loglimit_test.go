// SPDX-License-Identifier: Apache-2.0

package loglimit_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/loglimit"
)

// A buffer keeps what several goroutines write.
type buffer struct {
	mu  sync.Mutex
	all []byte
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, p...)
	return len(p), nil
}

// take returns what was written since the last call.
func (b *buffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	said := string(b.all)
	b.all = nil
	return said
}

// A kind has 10 lines in 10 seconds. Then one line says how many were left out.
func TestLinesOfAKindAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		lines := loglimit.Lines{Log: slog.New(slog.NewTextHandler(&out, nil))}
		made := 0
		refuse := func(n int) {
			for range n {
				lines.Warn(loglimit.Refused, func() []any { made++; return []any{"peer", "10.0.0.1:1"} })
			}
		}
		refuse(25)
		for range 3 {
			lines.Warn(loglimit.Breach, func() []any { made++; return nil })
		}
		if said := out.take(); made != 13 || strings.Count(said, "connection refused") != 10 || strings.Count(said, "broke the protocol") != 3 {
			t.Errorf("%d lines were made:\n%s", made, said)
		}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if said := out.take(); !strings.Contains(said, `connection refused: more such lines were left out" lines=15`) || strings.Contains(said, "protocol: more") {
			t.Errorf("after the period: %s", said)
		}
		refuse(12)
		lines.Flush()
		if said := out.take(); strings.Count(said, "10.0.0.1") != 10 || !strings.Contains(said, "lines=2") {
			t.Errorf("in the next period: %s", said)
		}
		refuse(30) // starts no timer, which the bubble would wait for
	})
}
