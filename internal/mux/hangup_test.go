// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A peer that sends one-way requests until this side reads no more of them, and leaves, is noticed
// although what it sent is never read.
func TestAPeerThatLeavesWhileItIsNotReadIsNoticed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says that a peer has gone that still has something to say")
	}
	for name, untilFull := range map[string]bool{"all has come": false, "more than the system takes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := defaultLimits()
			limits.MaxOpen, limits.KeepAlive = 10, time.Minute
			blocked := make(chan struct{})
			s := &setup{server: mux.Config{Limits: limits}, serves: map[string]*handler{"block": {serve: func(r *mux.Request) {
				select {
				case <-r.Done():
				case <-blocked:
				}
			}}}}
			peer, srv := s.facingServer(t)
			t.Cleanup(func() { close(blocked) })
			peer.write(hello(nil), method(0, "block"))
			peer.expectHello()
			peer.expect(wire.MethodInfo)
			var some []byte
			for range 10_000 {
				some = append(some, frameOf(wire.Header{Type: wire.Request, Flags: wire.OneWay}, nil, nil)...)
			}
			for {
				_ = peer.nc.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)) // Write says if it fails
				_, err := peer.nc.Write(some)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if !untilFull {
					break
				}
			}
			peer.nc.Close()
			within(t, "the connection ends", srv.Ended())
			if err := srv.Err(); !errors.As(err, new(*mux.IOError)) {
				t.Errorf("got %v", err)
			}
		})
	}
}
