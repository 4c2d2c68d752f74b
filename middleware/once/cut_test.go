// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/retry"
)

// Calls with keys are retried while their connections are cut again and again: each succeeds and is
// executed once.
func TestEachCallIsExecutedOnceWhateverBecomesOfItsConnection(t *testing.T) {
	t.Attr("rerun", "never")
	const callers, each, cut = 32, 30, 12 // a client waits longer each time before it connects again
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler), Keys: once.With(nil)})
	var executions sync.Map
	var executed, cuts atomic.Int32
	count.Handle(s, func(ctx context.Context, in *string) (*string, error) {
		n, _ := executions.LoadOrStore(*in, new(atomic.Int32))
		peer := yodel.CallFrom(ctx).Peer()
		<-time.After(time.Millisecond)
		if executed.Add(1)%50 == 0 && cuts.Load() < cut { // with all calls that are on their way
			cuts.Add(1)
			peer.Conn.Close()
		}
		out := fmt.Sprint(*in, " ", n.(*atomic.Int32).Add(1))
		return &out, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	var addrs []string
	for range 3 { // one server, with as many connections to a client
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		addrs = append(addrs, l.Addr().String())
		go func() { served <- s.Serve(ctx, l) }()
	}
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
		Logger:     slog.New(slog.DiscardHandler),
		Middleware: []yodel.Middleware{once.Keys(), retry.With(&retry.Options{Times: 100, MaxBackoff: 200 * time.Millisecond, Share: 1})},
	})
	var attempts atomic.Int32
	var load sync.WaitGroup
	for caller := range callers {
		load.Go(func() {
			for i := range each {
				in := fmt.Sprintf("%d-%d", caller, i)
				call := &yodel.Call{}
				out, err := count.Do(t.Context(), c, call, &in)
				attempts.Add(int32(call.Attempt) + 1)
				if err != nil || *out != in+" 1" {
					t.Errorf("%s: got %v, %v", in, out, err)
				}
			}
		})
	}
	load.Wait()
	c.Close()
	stop()
	for range addrs {
		must(t, <-served)
	}
	total := 0
	executions.Range(func(in, n any) bool {
		total++
		if n := n.(*atomic.Int32).Load(); n != 1 {
			t.Errorf("%v was executed %d times", in, n)
		}
		return true
	})
	if total != callers*each || attempts.Load() < callers*each+20 {
		t.Errorf("%d calls were executed, with %d attempts and %d cuts; want %d, and more attempts than that", total, attempts.Load(), cuts.Load(), callers*each)
	}
	t.Logf("%d calls, %d attempts, %d cuts", total, attempts.Load(), cuts.Load())
}
