// SPDX-License-Identifier: Apache-2.0

package readiness_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/leak"
	"github.com/yodel-rpc/yodel/internal/readiness"
)

func TestMain(m *testing.M) { leak.Verify(m) }

// Two failures in a row make a ready program not ready, and one success makes it ready.
func TestOneFailureIsNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		var asked, changes atomic.Int32
		var log bytes.Buffer
		p := readiness.New(func(context.Context) error {
			asked.Add(1)
			if down.Load() {
				return errors.New("down")
			}
			return nil
		}, slog.New(slog.NewTextHandler(&log, nil)), func() { changes.Add(1) }, nil)
		if p.Err() == nil {
			t.Error("it is ready before it has answered")
		}
		defer p.Follow()()
		wants := func(ready bool, n int32) {
			t.Helper()
			synctest.Wait()
			if err := p.Ready(); (err == nil) != ready || changes.Load() != n {
				t.Errorf("got %v and %d changes, want ready %t and %d", err, changes.Load(), ready, n)
			}
		}
		wants(true, 1)
		down.Store(true)
		time.Sleep(readiness.Every)
		wants(true, 1)
		time.Sleep(readiness.Every)
		wants(false, 2)
		time.Sleep(readiness.Every)
		wants(false, 2)
		down.Store(false)
		time.Sleep(readiness.Every)
		wants(true, 3)
		if n := asked.Load(); n != 5 {
			t.Errorf("it was asked %d times in 4 intervals, want 5", n)
		}
		if said := log.String(); strings.Count(said, `level=INFO msg="yodel: ready"`) != 2 || strings.Count(said, `level=WARN msg="yodel: not ready" err=down`) != 1 {
			t.Errorf("the log says:\n%s", said)
		}
	})
}

// A program that does not answer is not ready, is not asked twice at the same time, and nobody
// waits for it for ever.
func TestAProgramThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		release, ended := make(chan struct{}), make(chan struct{})
		p := readiness.New(func(context.Context) error {
			if asked.Add(1) == 1 {
				<-release
			}
			return nil
		}, slog.New(slog.DiscardHandler), func() {}, ended)
		began := time.Now()
		for range 3 {
			if err := p.Ready(); err == nil {
				t.Error("it is ready without an answer")
			}
		}
		if took := time.Since(began); took > 5*time.Second || asked.Load() != 1 {
			t.Errorf("three questions took %v, it was asked %d times", took, asked.Load())
		}
		time.Sleep(time.Minute)
		if err := p.Ready(); err == nil || asked.Load() != 1 {
			t.Errorf("after a minute: %v, it was asked %d times", err, asked.Load())
		}
		close(release)
		synctest.Wait()
		if err := p.Ready(); err != nil || asked.Load() != 2 {
			t.Errorf("then: %v, it was asked %d times", err, asked.Load())
		}
	})
}

// Without a goroutine that follows it, an answer is asked for when it is needed.
func TestAnAnswerIsNotOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		p := readiness.New(func(context.Context) error {
			if asked.Add(1) > 1 {
				return errors.New("down")
			}
			return nil
		}, slog.New(slog.DiscardHandler), func() {}, nil)
		for _, want := range []bool{true, true, false} {
			if got := p.Ready() == nil; got != want {
				t.Errorf("after %d questions: ready %t, want %t", asked.Load(), got, want)
			}
			time.Sleep(time.Hour)
		}
	})
}

// The end of the program ends a question.
func TestTheEndOfTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		p := readiness.New(func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, slog.New(slog.DiscardHandler), func() {}, ended)
		stop, began := p.Follow(), time.Now()
		synctest.Wait()
		close(ended)
		stop()
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

func TestWithoutAProbe(t *testing.T) {
	var p *readiness.Probe
	p.Follow()()
	if p.Ready() != nil || p.Err() != nil {
		t.Error("it is not ready")
	}
}
