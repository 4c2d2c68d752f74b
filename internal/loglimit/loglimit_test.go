// SPDX-License-Identifier: Apache-2.0

package loglimit_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/loglimit"
	"github.com/yodel-rpc/yodel/internal/mux"
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

// counted counts how often its text is made.
type counted struct{ made *int }

func (c counted) Error() string {
	*c.made++
	return "it is full"
}

// A kind has 10 lines in 10 seconds. Then one line says how many were left out.
func TestLinesOfAKindAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		lines := loglimit.Lines{Log: slog.New(slog.NewTextHandler(&out, nil))}
		made := 0
		refuse := func(n int) {
			for range n {
				lines.LogRefused("10.0.0.1:1", counted{&made})
			}
		}
		refuse(25)
		for range 3 {
			lines.LogBreach("10.0.0.2:1", "http", "half a header")
		}
		if said := out.take(); made != 10 || strings.Count(said, "connection refused") != 10 || strings.Count(said, "broke the protocol") != 3 {
			t.Errorf("%d errors were written:\n%s", made, said)
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

func TestLinesSayWhatPeersDid(t *testing.T) {
	var out buffer
	lines := loglimit.Lines{Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}}))}
	defer lines.Flush()
	refusal := errors.New("the certificate has expired")
	ended := func(err error) func() {
		return func() {
			lines.LogEnded("a:1", err, func(err error) (message, id string, ok bool) {
				return "a:1: " + err.Error(), "YDL1108", errors.Is(err, refusal)
			})
		}
	}
	for want, log := range map[string]func(){
		`msg="yodel: connection refused" peer=a:1 err="it is full"`:                                                                     func() { lines.LogRefused("a:1", errors.New("it is full")) },
		`msg="yodel: a peer connected and did not say what it speaks" peer=a:1 id=YDL1102`:                                              func() { lines.LogSilent("a:1") },
		`msg="yodel: a peer broke the protocol" peer=a:1 protocol=http what="half a header" id=YDL1106`:                                 func() { lines.LogBreach("a:1", "http", "half a header") },
		`msg="yodel: a reply was sent without a part of its metadata" method=A.B key=big reason="it is too large"`:                      func() { lines.LogLeftOut("A.B", "big", "it is too large") },
		`msg="yodel: a peer does not speak yodel" peer=a:1 sent="` + firstbytes.Describe([]byte("GET / HTTP/1.1\r\n")) + `" id=YDL1101`: ended(&mux.PrefaceError{Got: []byte("GET / HTTP/1.1\r\n")}),
		`msg="yodel: a peer broke the protocol" peer=a:1 what="half a frame" id=YDL1106`:                                                ended(fmt.Errorf("read: %w", &mux.ProtocolError{What: "half a frame"})),
		`msg="yodel: the transport refused a peer" peer=a:1 reason="the certificate has expired" id=YDL1108`:                            ended(refusal),
		``: ended(mux.ErrClosed),
	} {
		log()
		if got := strings.TrimSpace(out.take()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if ended(mux.ErrHandshake)(); !strings.Contains(out.take(), "did not say what it speaks") {
		t.Error("a silent peer is not named")
	}
	if lines.PairsLeftOut() != 1 {
		t.Errorf("%d pairs were left out", lines.PairsLeftOut())
	}
}

func TestHiddenErrorsHaveNumbers(t *testing.T) {
	var out buffer
	lines := loglimit.Lines{Log: slog.New(slog.NewTextHandler(&out, nil))}
	defer lines.Flush()
	for n := range 12 {
		want := fmt.Sprintf("see hidden error %d in the server's log", n+1)
		if n >= 10 {
			want = "the server's log, which was full, has only some errors of these seconds"
		}
		if got := lines.LogHidden("A.B", errors.New("no such table")); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if said := out.take(); !strings.Contains(said, `hiddenError=10 method=A.B err="no such table"`) {
		t.Errorf("got %s", said)
	}
}
