// SPDX-License-Identifier: Apache-2.0

package loglimit_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/loglimit"
)

// A kind has 10 lines in 10 seconds. Then one line says how many were left out.
func TestLinesOfAKindAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		lines := loglimit.Lines{Log: slog.New(slog.NewTextHandler(&out, nil))}
		made := 0
		warn := func(kind loglimit.Kind, n int) {
			for range n {
				lines.Warn(kind, func() []any { made++; return []any{"peer", "10.0.0.1:1"} })
			}
		}
		warn(loglimit.Refused, 25)
		warn(loglimit.Breach, 3)
		if made != 13 || strings.Count(out.String(), "connection refused") != 10 || strings.Count(out.String(), "broke the protocol") != 3 {
			t.Errorf("%d lines were made:\n%s", made, out.String())
		}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if !strings.Contains(out.String(), `connection refused: more such lines were left out" lines=15`) || strings.Contains(out.String(), `protocol: more`) {
			t.Errorf("after the period: %s", out.String())
		}
		out.Reset()
		warn(loglimit.Refused, 12)
		lines.Flush()
		if strings.Count(out.String(), "10.0.0.1") != 10 || !strings.Contains(out.String(), "lines=2") {
			t.Errorf("in the next period: %s", out.String())
		}
		warn(loglimit.Refused, 30) // starts no timer, which the bubble would wait for
	})
}
