// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A late reply comes once, whether Serve runs on the reader goroutine or not, and whether Finish is
// called before, while or after Serve returns.
func TestLateReplies(t *testing.T) {
	for _, inline := range []bool{true, false} {
		for _, when := range []string{"before", "with", "after", "goexit"} {
			t.Run(fmt.Sprintf("inline %t, %s", inline, when), func(t *testing.T) {
				later := make(chan *mux.Request, 100)
				h := &handler{inline: inline, serve: func(r *mux.Request) {
					r.Later()
					switch when {
					case "before":
						r.Finish()
						r.Finish() // has no effect
					case "with":
						go r.Finish()
					default:
						later <- r
					}
					if when == "goexit" {
						runtime.Goexit()
					}
				}}
				s := &setup{serves: map[string]*handler{"late": h}}
				peer, srv := s.facingServer(t)
				peer.write(hello(nil), method(0, "late"))
				const calls = 50
				for i := range uint32(calls) {
					peer.write(request(0, wire.NextID(i), ""))
				}
				if when == "after" || when == "goexit" {
					for range calls {
						r := <-later
						r.Finish()
						r.Finish() // has no effect
					}
				}
				peer.expectHello()
				for range calls {
					if h, f, body := peer.expectAnyReply(); h.Arg != 0 || body != "late" {
						t.Fatalf("got code %d, %q, %s", h.Arg, body, f.Message)
					}
				}
				peer.nc.Close()
				<-srv.Ended()
			})
		}
	}
}

// A Serve that fails after Later replies at once, and Finish has no effect.
func TestNotLate(t *testing.T) {
	later := make(chan *mux.Request, 1)
	h := &handler{serve: func(r *mux.Request) {
		r.Later()
		r.Reply.Body = []byte("failed")
		if !r.NotLater() {
			t.Error("nobody has called Finish")
		}
		later <- r
	}}
	s := &setup{serves: map[string]*handler{"late": h}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "late"), request(0, wire.NextID(0), ""))
	(<-later).Finish()
	peer.expectHello()
	if h, _, body := peer.expectAnyReply(); h.Arg != 0 || body != "failed" {
		t.Errorf("got code %d, %q", h.Arg, body)
	}
	peer.nc.Close()
	<-srv.Ended()
}
