// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/session"
	"github.com/yodel-rpc/yodel/introspect"
)

// A link is a Conn with the client at its other end.
type link struct {
	*session.Conn
	client, server net.Conn
	end            func()
	held           atomic.Int64 // bytes, as Options.Memory counts them
	rescued        atomic.Int32 // calls of Rescue
	unread         atomic.Bool  // as Options.Look says
}

func (l *link) TakeFor(n, held int) bool {
	if held > 1<<20 {
		return false
	}
	l.held.Add(int64(n))
	return true
}
func (l *link) Give(n int) { l.held.Add(-int64(n)) }
func (l *link) Rescue(string) {
	l.rescued.Add(1)
	_ = recover()
}

// gone reports whether the calls have ended because the client has disconnected.
func (l *link) gone() bool { return context.Cause(l.Context()) == mux.ErrCallerGone }

// connect returns a link over a pipe. Change, which may be nil, changes its options.
func connect(t *testing.T, change func(*session.Options)) *link {
	t.Helper()
	l := new(link)
	l.client, l.server = net.Pipe()
	o := &session.Options{
		Handshake: time.Second, KeepAlive: 5 * time.Second, IdleTimeout: time.Minute, MaxMemory: 100_000, Memory: l, Guard: l,
		MaxMessage: 1000, MaxOpen: 2, Room: &admission.Room{Calls: 3, Bytes: 100_000},
		Look: func(net.Conn) (unread, gone bool) { return l.unread.Load(), false },
	}
	if change != nil {
		change(o)
	}
	l.Conn = session.New(l.server, o)
	l.end = func() {
		l.Abort()
		_ = l.client.Close()
	}
	t.Cleanup(l.end)
	return l
}

// send writes to the server, and waits until the server has read it all.
func (l *link) send(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(l.client, text); err != nil {
		t.Error(err)
	}
}

// after checks that f takes as long as want.
func after(t *testing.T, want time.Duration, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if got := time.Since(began); got != want {
		t.Errorf("it took %v, want %v", got, want)
	}
}

func TestTheFirstBytesDecideTheProtocol(t *testing.T) {
	matchX := func(first []byte) (foreign, more bool) { return bytes.Contains(first, []byte("X")), len(first) < 8 }
	for sent, want := range map[string]string{"abX": "abX", "abcdefgh": "abcdefgh", "": ""} {
		synctest.Test(t, func(t *testing.T) {
			l := connect(t, nil)
			go func() {
				for i := range sent {
					time.Sleep(100 * time.Millisecond)
					l.send(t, sent[i:i+1])
				}
				if sent == "" {
					_ = l.client.Close()
				}
			}()
			if got := l.Sniff(matchX); string(got) != want {
				t.Errorf("sent %q: decided by %q, want %q", sent, got, want)
			}
			if sent != "abX" {
				return
			}
			if got, err := io.ReadAll(io.LimitReader(l.Reader(""), 3)); string(got) != sent || err != nil {
				t.Errorf("the reader begins with %q, %v", got, err)
			}
		})
	}
}

func TestAClientThatDoesNotShowItsProtocolIsNotWaitedFor(t *testing.T) {
	never := func([]byte) (foreign, more bool) { return false, true }
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		after(t, 5*time.Minute, func() { l.Sniff(never) })
	})
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		go l.send(t, "a")
		after(t, time.Second, func() { l.Sniff(never) })
	})
}

func TestTheRestOfAMessageMustArriveInTime(t *testing.T) {
	for pieces, slow := range map[int]bool{100: true, 5000: false} {
		synctest.Test(t, func(t *testing.T) {
			l := connect(t, nil)
			r := l.Reader("")
			var sending sync.WaitGroup
			sending.Go(func() {
				for piece := strings.Repeat("a", pieces); ; time.Sleep(time.Second) {
					if _, err := io.WriteString(l.client, piece); err != nil {
						return
					}
				}
			})
			if err := l.Next(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			_, err := io.CopyN(io.Discard, r, 30*int64(pieces))
			took := time.Since(began)
			if slow && (err == nil || took > 11*time.Second) || !slow && err != nil {
				t.Errorf("pieces of %d bytes each second: got %v after %v", pieces, err, took)
			}
			l.end()
			sending.Wait()
		})
	}
}

func TestAnIdleConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		l.Reader("")
		l.Busy(1)
		go func() {
			time.Sleep(3 * time.Minute) // a call, which is longer than the timeout
			l.Busy(-1)
		}()
		after(t, 4*time.Minute, func() {
			if err := l.Next(); err != io.EOF {
				t.Errorf("got %v", err)
			}
		})
		if kind, _, _ := l.Finish(io.EOF); kind != introspect.Closed {
			t.Errorf("the connection says %q, but this side has ended it", kind)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, func(o *session.Options) { o.IdleTimeout = 0 })
		l.Reader("")
		go func() {
			time.Sleep(24 * time.Hour)
			l.send(t, "a")
		}()
		after(t, 24*time.Hour, func() {
			if err := l.Next(); err != nil {
				t.Errorf("without a timeout: got %v", err)
			}
		})
	})
}

func TestAWriteThatIsNotTakenEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		after(t, 10*time.Second, func() {
			if n, err := l.Write([]byte("reply")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %d, %v", n, err)
			}
		})
		if _, err := l.client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection is still open: %v", err)
		}
		if kind, _, err := l.Finish(io.ErrUnexpectedEOF); kind != introspect.WriteFailed || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection says that the write has failed with %v", err)
		}
	})
}

func TestConcurrentWritesDoNotMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := connect(t, nil)
		const size = 200_000
		for _, text := range []string{"a", "b", "c"} {
			go func() {
				if n, err := l.Write([]byte(strings.Repeat(text, size))); n != size || err != nil {
					t.Errorf("got %d, %v", n, err)
				}
			}()
		}
		for range 3 {
			got := make([]byte, size)
			if _, err := io.ReadFull(l.client, got); err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(got, got[:1]); n != size {
				t.Errorf("%d of %d bytes are of the same message", n, size)
			}
		}
	})
}

func TestWhatAClientMakesTheServerHoldIsCounted(t *testing.T) {
	l := connect(t, nil)
	var call session.Call
	l.Begin(&call, "A.B")
	for _, step := range []struct {
		what  string
		take  func(n int) bool
		n     int
		fits  bool
		holds int64
	}{
		{"a reservation", l.Reserve, 60_000, true, 60_000},
		{"a negative reservation", l.Reserve, -1, false, 60_000},
		{"more than the limit", call.Take, 40_001, false, 60_000},
		{"the rest", call.Take, 40_000, true, 100_000},
	} {
		if fits := step.take(step.n); fits != step.fits || l.held.Load() != step.holds {
			t.Errorf("%s: got %v, and %d bytes are held", step.what, fits, l.held.Load())
		}
	}
	if call.Give(40_000); l.held.Load() != 60_000 {
		t.Errorf("at the end of what was taken %d bytes are held", l.held.Load())
	}
	if l.Release(10_000); l.held.Load() != 50_000 {
		t.Errorf("after a release %d bytes are held", l.held.Load())
	}
	if l.Release(1 << 30); l.held.Load() != 0 {
		t.Errorf("a release of more than was reserved leaves %d bytes", l.held.Load())
	}
	l.Reserve(1000)
	if l.Wait(); l.held.Load() != 0 || l.Reserve(1) {
		t.Errorf("after the end %d bytes are held", l.held.Load())
	}
}
