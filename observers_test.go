// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func TestServerObserversAreToldOfTheStartOfEveryCallThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{
			Observers: []yodel.Observer{log.observer("call")}, Limits: yodel.Limits{MaxMetadata: 10},
		}, nil)
		n := 21
		call := &yodel.Call{Metadata: yodel.Metadata{"much more than": "ten bytes"}}
		if _, err := hookDouble.Do(t.Context(), h.client, call, &n); !errors.Is(err, yodel.ResourceExhausted) {
			t.Errorf("got %v, want resource_exhausted", err)
		}
		synctest.Wait()
		log.is(t, "call start", "call end")
	})
}

func TestServeReturnsWhenTheEndOfEveryCallHasBeenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Observers: []yodel.Observer{{
			End: func(context.Context, *yodel.Call, error) {
				time.Sleep(time.Second) // a log that is slow now and then
				log.add("end")
			},
		}}}, nil)
		h.works(t, 42)
		h.close()
		h.stop()
		log.add("stopped") // the process may exit now
		time.Sleep(time.Minute)
		log.is(t, "end", "stopped")
	})
}

func TestARefusedPeerIsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{
			OnConn:  log.event,
			Connect: func(context.Context, *yodel.Peer) error { return errHook },
		}, nil)
		if _, err := h.double(t); !errors.Is(err, yodel.FailedPrecondition) {
			t.Errorf("got %v, want the hook's error", err)
		}
		h.close()
		synctest.Wait()
		log.begins(t, "accepted", "refused") // the client may try once more before it is closed
	})
}

func TestAnIdleClientStaysConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{OnConn: log.event})
		if err := h.client.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		log.is(t, "connected")
	})
}
