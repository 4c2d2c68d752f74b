// SPDX-License-Identifier: Apache-2.0

package pipelined_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// A call that waits for room in the queue ends with the connection, also if its context does not
// end.
func TestSendEndsWithTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		l := pipelined.NewLink[int](near, yodel.Limits{MaxUnsent: 10}, pipelined.Uncounted{})
		l.Start(func() error {
			_, err := near.Read(make([]byte, 1))
			return err
		})
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
