// SPDX-License-Identifier: Apache-2.0

//go:build !race

package grpcgo_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel/internal/servercost"
)

// The processor time of a call in yodel's server is at most a part of that in grpc-go's, for the
// same client of grpc-go over one connection. It is about 0.3 with 10 callers, and 0.2 with 100 and
// with 1000.
func TestCallsCostLessThanThoseOfGRPC(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	theirs, ours := startCosted(t, "grpc-go"), startCosted(t, "yodel")
	for _, test := range []struct {
		callers int
		most    float64
	}{{10, 0.5}, {100, 0.4}, {1000, 0.35}} {
		var ratios []float64
		for range 5 {
			ratios = append(ratios, ours.cost(t, test.callers)/theirs.cost(t, test.callers))
		}
		slices.Sort(ratios)
		t.Logf("%d callers: %.2f of the processor time of grpc-go's server", test.callers, ratios)
		if median := ratios[len(ratios)/2]; median > test.most {
			t.Errorf("%d callers: a call costs %.2f of one in grpc-go's server, want at most %.2f", test.callers, median, test.most)
		}
	}
}

// A costed is a server in a process of its own, and a client.
type costed struct {
	*servercost.Server
	client *grpc.ClientConn
}

func startCosted(t *testing.T, kind string) *costed {
	t.Helper()
	s := &costed{Server: servercost.Start(t, kind)}
	var err error
	if s.client, err = grpc.NewClient(s.Addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	return s
}

// cost returns the processor time of a call in the server, in seconds, when callers call it for a
// second.
func (s *costed) cost(t *testing.T, callers int) float64 {
	t.Helper()
	s.call(t, callers, 100*time.Millisecond) // the windows and tables of the connection have grown
	before := s.Used(t)
	calls := s.call(t, callers, time.Second)
	used := s.Used(t).Processor - before.Processor
	if t.Failed() {
		t.FailNow()
	}
	return used.Seconds() / float64(calls)
}

// call makes calls for a duration, and returns how many.
func (s *costed) call(t *testing.T, callers int, during time.Duration) int64 {
	t.Helper()
	request := &wrapperspb.BytesValue{Value: make([]byte, 100)}
	var calls atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(during)
	for range callers {
		all.Go(func() {
			for time.Now().Before(end) {
				if err := s.client.Invoke(t.Context(), "/"+costMethod, request, new(wrapperspb.BytesValue)); err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	all.Wait()
	return calls.Load()
}
