// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/introspect"
)

func TestAnAttemptIsDescribedAsFarAsItIsKnown(t *testing.T) {
	unary := record.LastAttempt{Addr: "a:1", Start: 100, Began: 110, Ended: 150, Arrived: 145, Credit: 3, BytesOut: 7, BytesIn: 9}
	fork := unary
	fork.Fork, fork.Began = true, 90 // the clock of its goroutine
	stream := unary
	stream.Stream, stream.Accepted = introspect.Traffic{Sent: 1, BytesOut: 10, Received: 2, BytesIn: 20}, true
	refused := stream
	refused.Stream, refused.Accepted, refused.Arrived = introspect.Traffic{}, false, 0
	for name, test := range map[string]struct {
		trip record.LastAttempt
		made int
		want introspect.Attempt
	}{
		"unary":    {unary, 2, introspect.Attempt{Addr: "a:1", Began: 10, Took: 40, BytesOut: 7, BytesIn: 9, Connecting: 5, Credit: 3}},
		"not sent": {unary, 1, introspect.Attempt{Addr: "a:1", Began: 10, Took: 40, BytesIn: 9, Connecting: 5, Credit: 3}},
		"a fork":   {fork, 2, introspect.Attempt{Addr: "a:1", Took: 60, Fork: true, BytesOut: 7, BytesIn: 9, Connecting: 5, Credit: 3}},
		"a stream": {stream, 2, introspect.Attempt{Addr: "a:1", Began: 10, Took: 40, Taken: 35, BytesOut: 17, BytesIn: 29, Sent: 1, Received: 2, Connecting: 5, Credit: 3}},
		"refused":  {refused, 2, introspect.Attempt{Addr: "a:1", Began: 10, Took: 40, BytesOut: 7, BytesIn: 9, Connecting: 5, Credit: 3}},
	} {
		p := record.Progress{Parts: record.Parts{Connecting: 5}, Counted: 1, Resolving: 20}
		if got := p.Describe(&test.trip, test.made); got != test.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, test.want)
		}
		if p.Waited() != 25 {
			t.Errorf("%s: the call has waited %v", name, p.Waited())
		}
	}
}

func TestOfAStreamOnlyItsBeginningIsSlow(t *testing.T) {
	const after = time.Second
	for _, test := range []struct {
		times   record.Served
		took    time.Duration
		streams bool
		want    bool
	}{
		{record.Served{}, after, false, true},
		{record.Served{}, after - 1, false, false},
		{record.Served{Arrived: 1, Taken: 2}, after - 1, false, true},
		{record.Served{}, time.Hour, true, false},
		{record.Served{Taken: 1, Began: 1 + after}, time.Hour, true, true},
		{record.Served{Arrived: 1, Taken: 1 + after}, time.Hour, true, true},
	} {
		if got := test.times.Slow(test.took, test.streams, after); got != test.want {
			t.Errorf("%+v: got %t", test, got)
		}
	}
}
