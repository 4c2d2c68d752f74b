// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/session"
)

// A looped is a link whose messages are bytes.
type looped struct {
	*link
	calls map[byte]func() // what the message executes, where it is read
	here  atomic.Int32    // messages that Here has taken
	ended chan error
}

// loop serves calls until the client has left.
func loop(t *testing.T, calls map[byte]func()) *looped {
	t.Helper()
	l := &looped{calls: calls, ended: make(chan error, 1)}
	l.link = connect(t, func(o *session.Options) { o.Watch = inline.NewWatch() })
	reader := l.Reader("")
	go func() {
		l.ended <- l.Loop(func() error {
			message, err := reader.ReadByte()
			if f := l.calls[message]; err == nil && l.Here(f, new(interface{ More() bool })) {
				l.here.Add(1)
			} else if err == nil {
				l.Go(f)
			}
			return err
		}, nil)
		l.Wait()
	}()
	return l
}

// leave closes the connection, and returns why the loop has ended.
func (l *looped) leave() error {
	_ = l.client.Close()
	return <-l.ended
}

func TestCallsRunWhereTheyAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := loop(t, map[byte]func(){'.': func() {}})
		for range 10 {
			l.send(t, ".")
			synctest.Wait()
		}
		if l.rescued.Load() != 0 || l.here.Load() != 10 {
			t.Errorf("%d goroutines have ended, and %d calls were executed where they were read, want 0 and 10", l.rescued.Load(), l.here.Load())
		}
		l.send(t, "..") // the first one does not hold the second one up
		synctest.Wait()
		if l.rescued.Load() != 1 || l.here.Load() != 11 {
			t.Errorf("two messages at once: %d goroutines have ended, and %d calls were executed where they were read, want 1 and 11", l.rescued.Load(), l.here.Load())
		}
		if err := l.leave(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// Behind a call that takes long, another goroutine reads on.
func TestALongCallHandsTheReadingOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := make(chan struct{})
		l := loop(t, map[byte]func(){'w': func() { <-wait }, 'g': func() { close(wait) }, '.': func() {}})
		l.send(t, "w")
		l.send(t, "g")
		synctest.Wait()
		l.send(t, ".")
		if err := l.leave(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		synctest.Wait()
		if l.rescued.Load() != 2 || l.here.Load() != 3 {
			t.Errorf("%d goroutines have executed %d calls where they read, want 2 and 3", l.rescued.Load(), l.here.Load())
		}
	})
}

// A call may end the goroutine that reads, or panic there.
func TestACallEndsTheGoroutineThatReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := false
		l := loop(t, map[byte]func(){'x': runtime.Goexit, 'p': func() { panic("p") }, '.': func() { done = true }})
		l.send(t, "x")
		l.send(t, "p")
		l.send(t, ".")
		synctest.Wait()
		if err := l.leave(); !errors.Is(err, io.EOF) || !done {
			t.Errorf("got %v, and the last call was executed: %t", err, done)
		}
	})
}

// A Loop returns if the code that reads has ended its goroutine.
func TestALoopEndsWithoutItsGoroutine(t *testing.T) {
	for _, end := range []func(){runtime.Goexit, func() { panic("p") }} {
		l := connect(t, nil)
		l.Reader("")
		go l.send(t, ".")
		err := l.Loop(func() error {
			end()
			return nil
		}, nil)
		if err == nil {
			t.Error("the loop has ended without an error")
		}
	}
}
