// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/session"
)

// A batched is a link whose messages are bytes. The reply to a message is the same byte, and may be
// held back.
type batched struct {
	*link
	calls map[byte]func() // what messages execute besides
	ended chan error

	mu     sync.Mutex
	queue  []byte
	writes chan string
}

var errBreach = errors.New("a message breaks the protocol")

// batch serves calls until the client has left, or sends '!'.
func batch(t *testing.T, calls map[byte]func()) *batched {
	t.Helper()
	b := &batched{calls: calls, ended: make(chan error, 1), writes: make(chan string, 100)}
	b.link = connect(t, func(o *session.Options) { o.Watch = inline.NewWatch() })
	reader := b.Reader("")
	go func() {
		err := b.Loop(func() error {
			message, err := reader.ReadByte()
			if err != nil {
				return err
			}
			if message == '!' {
				return errBreach
			}
			var call interface{ More() bool }
			if !b.Here(func() { b.execute(message, call) }, &call) {
				b.Go(func() { b.execute(message, nil) })
			}
			return nil
		}, b.flush)
		b.Wait()
		b.ended <- err
	}()
	return b
}

func (b *batched) execute(message byte, call interface{ More() bool }) {
	if f := b.calls[message]; f != nil {
		f()
	}
	b.mu.Lock()
	b.queue = append(b.queue, message)
	b.mu.Unlock()
	if call == nil || !call.More() {
		b.flush()
	}
}

func (b *batched) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 {
		b.writes <- string(b.queue)
		b.queue = b.queue[:0]
	}
}

// wrote waits for the next writes, and checks that there are no others.
func (b *batched) wrote(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := <-b.writes; got != w {
			t.Errorf("%q was written, want %q", got, w)
		}
	}
	synctest.Wait()
	if n := len(b.writes); n > 0 {
		t.Errorf("%d more writes, the first of %q", n, <-b.writes)
	}
	if n := b.Counted(); n != 0 {
		t.Errorf("the connection counts %d open calls", n)
	}
}

func TestRepliesOfABatchLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := batch(t, nil)
		b.send(t, "a")
		b.wrote(t, "a")
		b.send(t, "bcd")
		b.wrote(t, "bcd")
		_ = b.client.Close()
		if err := <-b.ended; !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// A call that takes long holds up neither the replies before it nor the calls behind it.
func TestALongCallHoldsUpNoReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := make(chan struct{})
		b := batch(t, map[byte]func(){'w': func() { <-wait }})
		b.send(t, "abw")
		b.wrote(t, "ab")
		b.send(t, "c")
		b.wrote(t, "c")
		close(wait)
		b.wrote(t, "w")
		b.send(t, "d")
		b.wrote(t, "d")
		_ = b.client.Close()
		<-b.ended
	})
}

// Behind a call that takes long, those of the same batch do not wait for each other.
func TestTheRestOfABatchDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := make(chan struct{})
		b := batch(t, map[byte]func(){'w': func() { <-wait }})
		began := time.Now()
		b.send(t, "wwwwwwwwwwwwwwwwwwwwa")
		b.wrote(t, "a")
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Errorf("20 calls that take long hold the next one up for %v", took)
		}
		close(wait)
		_ = b.client.Close()
		<-b.ended
	})
}

// While replies are held back, a drain waits as for a call.
func TestHeldRepliesKeepTheConnectionBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *batched
		open := -1
		b = batch(t, map[byte]func(){'o': func() { open = b.Counted() }})
		b.send(t, "ao")
		b.wrote(t, "ao")
		if open != 1 {
			t.Errorf("with a reply that is held back, %d calls are open, want 1", open)
		}
		_ = b.client.Close()
		<-b.ended
	})
}

// The replies to the requests before a message that breaks the protocol are written.
func TestHeldRepliesAreWrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := batch(t, nil)
		b.send(t, "ab!")
		if err := <-b.ended; !errors.Is(err, errBreach) {
			t.Error(err)
		}
		b.wrote(t, "ab")
	})
}

// A call that ends its goroutine holds up nothing either.
func TestACallThatPanicsHoldsUpNoReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := batch(t, map[byte]func(){'p': func() { panic("p") }})
		b.send(t, "ap")
		b.wrote(t, "a")
		b.send(t, "b")
		b.wrote(t, "b")
		_ = b.client.Close()
		<-b.ended
	})
}
