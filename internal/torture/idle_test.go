// SPDX-License-Identifier: Apache-2.0

//go:build unix

package torture_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// TestIdleConnectionsTakeNoProcessorTime makes lone calls on ten connections, so that all sides
// poll, and looks at what the process takes when the calls have ended: polling ends with them.
func TestIdleConnectionsTakeNoProcessorTime(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for name, polling := range map[string]time.Duration{"polling": 0, "without polling": -1} {
		t.Run(name, func(t *testing.T) {
			l, err := yodel.TCP.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			limits := yodel.Limits{Polling: polling}
			s := yodel.NewServer(&yodel.ServerOptions{Limits: limits})
			short.Handle(s, func(_ context.Context, job *Job) (*Done, error) { return &Done{job.ID}, nil })
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Serve(ctx, l) }()
			for range 10 {
				c := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{Limits: limits})
				defer c.Close()
				for id := range 500 {
					if _, err := short.Call(t.Context(), c, &Job{id}); err != nil {
						t.Fatal(err)
					}
				}
			}
			const bound = 10 * time.Millisecond // one percent of a processor
			least := time.Hour
			for n := 0; n < 3 && least > bound; n++ { // a collection of garbage is not meant
				before := processorTime(t)
				<-time.After(time.Second)
				least = min(least, processorTime(t)-before)
			}
			t.Logf("ten idle connections take %v of processor time a second, both sides together", least)
			if least > bound {
				t.Errorf("that is more than %v", bound)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// processorTime is what this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
