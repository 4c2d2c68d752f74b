// SPDX-License-Identifier: Apache-2.0

//go:build linux

package accept_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/accept"
)

// patience is how long a call may take before the test gives up.
const patience = 20 * time.Second

const touch yodel.Method[string, string] = "Door.Touch"

// A transportFrom dials TCP from a local address of its own. On Linux every address of 127.0.0.0/8
// is local.
type transportFrom struct {
	yodel.Transport

	local net.IP
}

func (f transportFrom) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: f.local}}
	return d.DialContext(ctx, "tcp", addr)
}

// TestFiltersDecideAboutConnections connects through real sockets from two addresses, of which the
// server lets one in.
func TestFiltersDecideAboutConnections(t *testing.T) {
	allow, err := accept.Allow("127.0.0.0/30")
	if err != nil {
		t.Fatal(err)
	}
	deny, err := accept.Deny("127.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	for name, filter := range map[string]func(net.Conn) error{"Allow": allow, "Deny": deny} {
		t.Run(name, func(t *testing.T) {
			var executed atomic.Int32
			addr := serve(t, filter, &executed)
			if err := call(t, addr, net.IPv4(127, 0, 0, 2)); err != nil {
				t.Errorf("from 127.0.0.2: %v", err)
			}
			if err := call(t, addr, net.IPv4(127, 0, 0, 9)); !yodel.NotProcessed(err) {
				t.Errorf("from 127.0.0.9: got %v, want an error that says that nothing was executed", err)
			}
			if n := executed.Load(); n != 1 {
				t.Errorf("%d calls were executed, want 1", n)
			}
		})
	}
}

// serve serves on a port of its own until the test ends.
func serve(t *testing.T, filter func(net.Conn) error, executed *atomic.Int32) (addr string) {
	t.Helper()
	l, err := yodel.TCP.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{Accept: filter, Logger: slog.New(slog.DiscardHandler)})
	touch.Handle(s, func(_ context.Context, in *string) (*string, error) {
		executed.Add(1)
		return in, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// call makes one call from a local address.
func call(t *testing.T, addr string, local net.IP) error {
	t.Helper()
	c := yodel.NewClient(yodel.Static(addr), &yodel.ClientOptions{
		Transport: transportFrom{yodel.TCP, local}, Logger: slog.New(slog.DiscardHandler),
	})
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := touch.Call(ctx, c, new("x"))
	return err
}
