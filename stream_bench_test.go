// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gencode"
	"github.com/yodel-rpc/yodel/codec/raw"
)

// The methods of the benchmarks: a feed of as many messages as the request's number says, an upload
// that counts, an echo, and a feed of raw bytes: the request is a number of 8 bytes, and the
// message to send.
const (
	tickFeed   yodel.Feed[tagged, tagged]   = "Bench.Feed"
	tickUpload yodel.Upload[tagged, tagged] = "Bench.Upload"
	tickEcho   yodel.Duplex[tagged, tagged] = "Bench.Echo"
	rawFeed    yodel.Feed[[]byte, []byte]   = "Bench.RawFeed"
)

// ticks serves them, and returns a client.
func ticks(t testing.TB) *yodel.Client {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{gencode.Codec}})
	tickFeed.Handle(s, func(_ context.Context, in *tagged, send yodel.Send[tagged]) error {
		tick := tagged{Text: in.Text}
		for tick.Number = range in.Number {
			if err := send(&tick); err != nil {
				return err
			}
		}
		return nil
	})
	tickUpload.Handle(s, func(_ context.Context, recv yodel.Recv[tagged]) (*tagged, error) {
		out := new(tagged)
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
			out.Number++
		}
		return out, nil
	})
	tickEcho.Handle(s, func(_ context.Context, recv yodel.Recv[tagged], send yodel.Send[tagged]) error {
		for tick, err := range recv {
			if err != nil {
				return err
			}
			if err := send(tick); err != nil {
				return err
			}
		}
		return nil
	})
	rawFeed.Handle(s, func(_ context.Context, in *[]byte, send yodel.Send[[]byte]) error {
		msg := (*in)[8:]
		for range binary.LittleEndian.Uint64(*in) {
			if err := send(&msg); err != nil {
				return err
			}
		}
		return nil
	})
	return connect(t, s, &yodel.ClientOptions{Codec: gencode.Codec})
}

// runFeed receives n messages on one stream, runUpload sends them, and runEcho sends each one when
// the one before has come back.
func runFeed(t testing.TB, c *yodel.Client, n int) {
	t.Helper()
	next := uint64(0)
	for tick, err := range tickFeed.Call(t.Context(), c, &tagged{Number: uint64(n)}) {
		if err != nil || tick.Number != next {
			t.Fatal(err, next)
		}
		next++
	}
}

func runUpload(t testing.TB, c *yodel.Client, n int) {
	t.Helper()
	got, err := tickUpload.Call(t.Context(), c, func(send yodel.Send[tagged]) error {
		tick := tagged{}
		for tick.Number = range uint64(n) {
			if err := send(&tick); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || got.Number != uint64(n) {
		t.Fatal(got, err)
	}
}

func runEcho(t testing.TB, c *yodel.Client, n int) {
	t.Helper()
	err := tickEcho.Call(t.Context(), c, func(recv yodel.Recv[tagged], send yodel.Send[tagged]) error {
		tick := tagged{}
		for tick.Number = range uint64(n) {
			if err := send(&tick); err != nil {
				return err
			}
			if back, err := recv.Next(); err != nil || back.Number != tick.Number {
				t.Fatal(back, err)
			}
		}
		return nil
	})
	must(t, err)
}

// runRaw receives n raw messages of 128 bytes on streams of at most 10,000, as the suite in bench/
// does, and runRawReuse does so without keeping any.
func runRaw(t testing.TB, c *yodel.Client, n int)      { t.Helper(); receiveRaw(t, c, n, false) }
func runRawReuse(t testing.TB, c *yodel.Client, n int) { t.Helper(); receiveRaw(t, c, n, true) }

func receiveRaw(t testing.TB, c *yodel.Client, n int, reuse bool) {
	t.Helper()
	for n > 0 {
		some := min(n, 10_000)
		n -= some
		request := append(binary.LittleEndian.AppendUint64(nil, uint64(some)), make([]byte, 128)...)
		recv := rawFeed.Do(t.Context(), c, &yodel.Call{Codec: raw.Codec}, &request)
		if reuse {
			recv = recv.Reuse()
		}
		for msg, err := range recv {
			if err != nil || len(*msg) != 128 {
				t.Fatal(msg, err)
			}
			some--
		}
		if some != 0 {
			t.Fatalf("%d messages are missing", some)
		}
	}
}

// The messages of the benchmarks have 8 bytes, and raw ones 128. An operation is a message, and in
// Echo one there and one back.
func BenchmarkStreamFeed(b *testing.B)   { benchmarkStream(b, runFeed) }
func BenchmarkStreamUpload(b *testing.B) { benchmarkStream(b, runUpload) }
func BenchmarkStreamEcho(b *testing.B)   { benchmarkStream(b, runEcho) }

func BenchmarkStreamRaw(b *testing.B)      { benchmarkStream(b, runRaw) }
func BenchmarkStreamRawReuse(b *testing.B) { benchmarkStream(b, runRawReuse) }

func benchmarkStream(b *testing.B, run func(testing.TB, *yodel.Client, int)) {
	b.Helper()
	c := ticks(b)
	run(b, c, 100)
	b.ReportAllocs()
	b.ResetTimer()
	run(b, c, b.N)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// A message of a stream allocates what its receiver gets, and nothing else, on both sides together.
// What a stream costs once is spread over its messages.
func TestAllocationsOfStreams(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, and makes pools forget")
	}
	c := ticks(t)
	for name, test := range map[string]struct {
		run      func(testing.TB, *yodel.Client, int)
		expected float64 // objects for each message
	}{
		"feed":   {runFeed, 1},      // new(tagged)
		"upload": {runUpload, 1},    // likewise
		"echo":   {runEcho, 2 + 2},  // on either side, and what Next takes to call the function that a Recv is
		"raw":    {runRaw, 2. / 13}, // slabs of 13 messages
		"reuse":  {runRawReuse, 0},
	} {
		t.Run(name, func(t *testing.T) {
			test.run(t, c, allocWarmUp)
			least := test.expected + 1000
			for attempt := 0; attempt < 5 && least > test.expected+allocSlack; attempt++ {
				least = min(least, float64(mallocs(func() { test.run(t, c, allocCalls) }))/allocCalls)
			}
			t.Logf("%.3f allocations for each message", least)
			if least > test.expected+allocSlack || least < test.expected-allocSlack {
				t.Errorf("a message makes %.3f allocations, want %v", least, test.expected)
			}
		})
	}
}
