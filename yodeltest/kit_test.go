// SPDX-License-Identifier: Apache-2.0

package yodeltest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// Greet is what a service of a user's offers, and greeter is that service.
const Greet yodel.Method[string, string] = "Greeter.Greet"

type greeter struct{ greeting string }

func (g *greeter) Greet(_ context.Context, name *string) (*string, error) {
	if *name == "" {
		return nil, yodel.Errorf(yodel.InvalidArgument, "who?")
	}
	return new(g.greeting + " " + *name), nil
}

// A scene is a test that prints what it has to say, because an example has no testing.T.
type scene struct {
	testing.TB
	cleanups []func()
}

func (*scene) Helper()                         {}
func (*scene) Output() io.Writer               { return os.Stdout }
func (*scene) Context() context.Context        { return context.Background() }
func (*scene) Errorf(text string, args ...any) { fmt.Printf(text+"\n", args...) }
func (s *scene) Cleanup(f func())              { s.cleanups = append(s.cleanups, f) }

func (s *scene) end() {
	for len(s.cleanups) > 0 {
		last := len(s.cleanups) - 1
		f := s.cleanups[last]
		s.cleanups = s.cleanups[:last]
		f()
	}
}

// The unit test of a service: all but the network is real, and nothing is left when it ends.
func ExampleNewClient() {
	testGreeter := func(t testing.TB) { // TestGreeter(t *testing.T)
		s := yodeltest.NewServer(t, nil)
		if err := s.RegisterName("Greeter", &greeter{"hello"}); err != nil {
			t.Errorf("register: %v", err)
		}
		c := yodeltest.NewClient(t, nil, s)

		reply, err := Greet.Call(t.Context(), c, new("anna"))
		if err != nil || *reply != "hello anna" {
			t.Errorf("got %v, %v", reply, err)
			return
		}
		fmt.Println(*reply)
		_, err = Greet.Call(t.Context(), c, new(""))
		fmt.Println(errors.Is(err, yodel.InvalidArgument), err)
	}

	t := &scene{}
	testGreeter(t)
	t.end()
	// Output:
	// hello anna
	// true invalid_argument: who?
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const Echo yodel.Method[[]byte, []byte] = "Echo"

func echo(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil }

func TestLargeMessagesPassBothWaysAtOnce(t *testing.T) {
	run := func(t *testing.T) {
		s := yodeltest.NewServer(t, nil)
		Echo.Handle(s.Server, echo)
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Codec: raw.Codec}, s)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				in := bytes.Repeat([]byte{byte(i)}, 1<<20+i)
				for range 3 {
					out, err := Echo.Call(t.Context(), c, &in)
					if err != nil || !bytes.Equal(*out, in) {
						t.Errorf("a message of 1 MiB did not pass: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	t.Run("real time", run)
	t.Run("fake time", func(t *testing.T) { synctest.Test(t, run) })
}

func TestDeadlinesPassInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, nil)
		left := make(chan time.Duration, 1)
		must(t, s.Handle("Wait", func(ctx context.Context, _ *struct{}) (*struct{}, error) {
			deadline, _ := ctx.Deadline()
			left <- time.Until(deadline)
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		c := yodeltest.NewClient(t, nil, s)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := c.Call(ctx, "Wait", &struct{}{}, nil); !errors.Is(err, yodel.DeadlineExceeded) {
			t.Errorf("got %v, want that the deadline is exceeded", err)
		}
		if took := time.Since(began); took != time.Hour {
			t.Errorf("the call took %v, want an hour of fake time", took)
		}
		if d := <-left; d <= 59*time.Minute || d > time.Hour {
			t.Errorf("the handler had %v left, want an hour", d)
		}
	})
}

func TestShutdownFinishesCallsAndRefusesLaterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, nil)
		release := make(chan struct{})
		must(t, s.Handle("Wait", func(context.Context, *struct{}) (*struct{}, error) { <-release; return nil, nil }))
		c := yodeltest.NewClient(t, nil, s)
		ended := make(chan error, 1)
		go func() { ended <- c.Call(t.Context(), "Wait", &struct{}{}, nil) }()
		synctest.Wait()
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		close(release)
		if err := errors.Join(<-ended, <-down); err != nil {
			t.Errorf("got %v, want that the call ends first", err)
		}
		_, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{})
		if !errors.Is(err, yodel.Unavailable) || !yodel.NotProcessed(err) || !strings.Contains(err.Error(), "server-1") {
			t.Errorf("a later call: got %v, want that server-1 did not execute it", err)
		}
	})
}

func TestServersAreInstancesOfOneService(t *testing.T) {
	var servers []*yodeltest.Server
	for i := range 3 {
		s := yodeltest.NewServer(t, nil)
		must(t, s.RegisterName("Greeter", &greeter{fmt.Sprint("server ", i, " greets")}))
		servers = append(servers, s)
	}
	c := yodeltest.NewClient(t, nil, servers...)
	replies := map[string]int{}
	for range 30 {
		reply, err := Greet.Call(t.Context(), c, new("anna"))
		must(t, err)
		replies[*reply]++
	}
	if len(replies) != 3 {
		t.Errorf("got %v, want replies of three servers", replies)
	}
}

func TestClientAndServerEndWithTheTest(t *testing.T) {
	yodeltest.NoLeaks(t)
	own := &scene{}
	s := yodeltest.NewServer(own, nil)
	c := yodeltest.NewClient(own, nil, s)
	_, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{})
	must(t, err)
	own.end()
	if _, err = inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); !errors.Is(err, yodel.Canceled) {
		t.Errorf("a call of the client: got %v, want that it is closed", err)
	}
	if err = s.ListenAndServe(t.Context(), "127.0.0.1:0"); !errors.Is(err, yodel.ErrServerClosed) {
		t.Errorf("got %v, want that the server has been shut down", err)
	}
}
