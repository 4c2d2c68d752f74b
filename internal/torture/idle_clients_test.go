// SPDX-License-Identifier: Apache-2.0

package torture_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A kindOfUse is what a client does before it is idle, and the most that its connection may cost
// the server then, in bytes of resident memory.
type kindOfUse struct {
	name string
	most int
	use  func(ctx context.Context, c *yodel.Client) error
}

// kindsOfUse are the ways in which a request reaches its handler: on the goroutine that reads, on a
// goroutine of its own, as a stream, and after the earlier calls of its key.
var kindsOfUse = []kindOfUse{
	{"short calls", 4 << 10, func(ctx context.Context, c *yodel.Client) error {
		_, err := quick.Call(ctx, c, &Job{0})
		return err
	}},
	{"calls on goroutines of their own", 4 << 10, func(ctx context.Context, c *yodel.Client) error {
		_, err := once.Call(ctx, c, &Job{0})
		return err
	}},
	{"streams", 4 << 10, func(ctx context.Context, c *yodel.Client) error {
		return mirror.Call(ctx, c, func(recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
			msg := make([]byte, 100)
			if err := send(&msg); err != nil {
				return err
			}
			for _, err := range recv {
				return err
			}
			return nil
		})
	}},
	{"calls with a key and metadata", 9 << 9, func(ctx context.Context, c *yodel.Client) error {
		_, err := twice.Do(ctx, c, &yodel.Call{
			Ordered: true, Key: "a", Metadata: map[string]string{"token": "0123456789abcdef0123456789abcdef"},
		}, &Job{0})
		return err
	}},
}

// TestIdleClients measures what a connection costs the server when it is parked after a few calls
// of each kind, without garbage: 3.3 to 4.0 KiB. Each further method that a connection has called
// costs 0.2 KiB, so calls of all kinds leave 4.0 to 4.4 KiB. The first thousand connections do not
// count, because the process grows with them to what it needs for many.
func TestIdleClients(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	if raceEnabled {
		t.Skip("it judges memory, which make test-timing does")
	}
	all := kindOfUse{"calls of all kinds", 5 << 10, func(ctx context.Context, c *yodel.Client) error {
		for _, kind := range kindsOfUse {
			if err := kind.use(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}}
	for _, kind := range append(kindsOfUse, all) {
		t.Run(kind.name, func(t *testing.T) { measureIdle(t, kind) })
	}
}

func measureIdle(t *testing.T, kind kindOfUse) {
	const warm, count, calls = 1000, 2000, 3
	server := start(t)
	own := yodel.Dial(server.addr)
	defer own.Close()
	open := func(n int) {
		for range n {
			c := yodel.NewClient(discovery.Static(server.addr), &yodel.ClientOptions{Limits: yodel.Limits{KeepAlive: longKeepAlive}})
			t.Cleanup(c.Close)
			for range calls {
				if err := kind.use(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	uses := func() int {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := tidy.Call(ctx, own, &Job{0}); err != nil {
			t.Fatal(err)
		}
		return resident(t, server.cmd.Process.Pid)
	}
	open(warm)
	before := uses()
	open(count)
	each := (uses() - before) / count
	t.Logf("an idle client costs the server %d bytes", each)
	if each > kind.most {
		t.Errorf("an idle client costs the server %d bytes, more than %d", each, kind.most)
	}
}
