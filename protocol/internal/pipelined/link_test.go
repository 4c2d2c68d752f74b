// SPDX-License-Identifier: Apache-2.0

package pipelined_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// A call that waits for room in the queue ends with the connection, also if its context does not
// end.
func TestSendEndsWithTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		l := pipelined.NewLink[int](near, "server", yodel.Limits{MaxUnsent: 10}, framebody.Uncounted{})
		l.Start(func() error {
			_, err := near.Read(make([]byte, 1))
			return err
		}, nil)
		send := func() error {
			_, err := l.Send(context.Background(), true, func(uint64) ([]byte, error) { return make([]byte, 100), nil })
			return err
		}
		if err := send(); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Read(make([]byte, 1)); err != nil { // the rest of the request blocks the writing goroutine
			t.Fatal(err)
		}
		if err := send(); err != nil { // the queue is now longer than MaxUnsent
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- send() }()
		synctest.Wait()
		why := errors.New("the server does not answer heartbeats")
		l.GiveUp(why)
		if err := <-ended; !errors.Is(err, why) || !yodel.NotProcessed(err) {
			t.Errorf("got %v, want an error that says that the request was not sent", err)
		}
		<-l.Done()
	})
}

// A call whose request did not leave whole before the connection was lost was not executed. One
// whose last byte was passed to the connection may have been.
func TestALostConnectionTellsWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		l := pipelined.NewLink[int](near, "server", yodel.Limits{MaxUnsent: 1 << 20}, framebody.Uncounted{})
		l.Start(func() error {
			_, err := near.Read(make([]byte, 1))
			return err
		}, nil)
		call := func(size int) chan error {
			ended := make(chan error, 1)
			p, err := l.Send(context.Background(), true, func(uint64) ([]byte, error) { return make([]byte, size), nil })
			if err != nil {
				t.Fatal(err)
			}
			go func() { ended <- l.Await(context.Background(), p, func(int) error { return nil }) }()
			return ended
		}
		first := call(100)
		if _, err := far.Read(make([]byte, 1)); err != nil { // the rest of the request blocks the writing goroutine
			t.Fatal(err)
		}
		second, large := call(100), call(200<<10)
		if _, err := io.ReadFull(far, make([]byte, 99+100+64<<10)); err != nil { // the last byte of large waits
			t.Fatal(err)
		}
		synctest.Wait()
		last := call(1)
		_ = far.Close()
		for name, test := range map[string]struct {
			ended  chan error
			unsent bool
		}{"first": {first, false}, "second": {second, false}, "large": {large, true}, "last": {last, true}} {
			err := <-test.ended // of the goroutine that reads or of the one that writes, whichever is first
			if err == nil || yodel.NotProcessed(err) != test.unsent || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s: got %v, want an error that says that it was not sent: %t", name, err, test.unsent)
			}
		}
		<-l.Done()
	})
}

// A silent server gets a heartbeat, and loses the connection if it does not answer.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		const keepAlive = time.Second
		l := pipelined.NewLink[int](near, "server", yodel.Limits{MaxUnsent: 10, KeepAlive: keepAlive}, framebody.Uncounted{})
		beats := 0
		l.Start(func() error {
			_, err := l.Reader.ReadByte()
			return err
		}, func() {
			if beats++; beats < 3 {
				go func() { _, _ = far.Write([]byte("x")) }() // the answer
			}
		})
		began := time.Now()
		<-l.Done()
		// Silence of one interval brings a heartbeat, and each answer silences the next interval.
		if passed := time.Since(began); beats != 3 || passed != 6*keepAlive {
			t.Errorf("the connection ended after %v and %d heartbeats: %v", passed, beats, l.Err())
		}
	})
}

// A budget is a Memory of a size.
type budget struct{ left int }

func (b *budget) Reserve(n int) bool {
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) Release(n int) { b.left += n }

// A reply that is too large, or for which there is no memory, fails its call before the rest of it
// has come. The replies behind it arrive.
func TestRefusedReplies(t *testing.T) {
	for name, test := range map[string]struct {
		size int // of the reply
		id   string
	}{"too large": {3 << 20, "YDL2202"}, "no memory": {1 << 20, "YDL3007"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				type reply struct {
					body []byte
					err  error
				}
				l := pipelined.NewLink[reply](near, "server", yodel.Limits{MaxUnsent: 1 << 20, MaxMessage: 2 << 20}, &budget{300 << 10})
				l.Start(func() error { // a reply is its number, its size and its body
					var head [8]byte
					if _, err := io.ReadFull(l.Reader, head[:]); err != nil {
						return err
					}
					return l.Receive(uint64(binary.BigEndian.Uint32(head[:])), "Test.Echo", nil, int(binary.BigEndian.Uint32(head[4:])),
						func(body []byte, err error) reply { return reply{body, err} })
				}, nil)
				go func() { _, _ = io.Copy(io.Discard, far) }() // the requests
				call := func() (ended chan error) {
					ended = make(chan error, 1)
					p, err := l.Send(context.Background(), true, func(uint64) ([]byte, error) { return make([]byte, 1), nil })
					if err != nil {
						t.Fatal(err)
					}
					go func() { ended <- l.Await(context.Background(), p, func(r reply) error { return r.err }) }()
					return ended
				}
				answer := func(number uint32, size int, body []byte) {
					head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, number), uint32(size))
					if _, err := far.Write(append(head, body...)); err != nil {
						t.Error(err)
					}
				}
				first, second := call(), call()
				answer(1, test.size, make([]byte, 300<<10)) // the rest does not come
				var e *yodel.Error
				if err := <-first; !errors.As(err, &e) || e.ID != test.id || e.NotProcessed {
					t.Errorf("got %v, want %s", err, test.id)
				}
				if _, err := far.Write(make([]byte, test.size-300<<10)); err != nil {
					t.Error(err)
				}
				answer(2, 5, []byte("hello"))
				if err := <-second; err != nil {
					t.Errorf("the next call: %v", err)
				}
				l.Close(true)
				<-l.Done()
				_ = far.Close()
			})
		})
	}
}
