// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"bytes"
	"compress/gzip"
	"time"

	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/internal/wire"
)

const mib = attacks.MiB

// memory is the attacks that make the victim hold memory. Unless it says otherwise, one connection
// may hold 64 MiB.
var memory = []attacks.Attack{
	{
		// 2000 calls with a reply of 1 MiB each, none of which the attacker reads.
		Name:  "noread",
		Do:    func(a *attacks.Attacker) { bigReplies(a, 2000) },
		Held:  96 * mib,              // 64 MiB of replies, and the connection's buffers
		Floor: 60 * time.Millisecond, // on a machine of half the usual speed, calls took 21 to 42 ms
	},
	{
		// The attacker reads the replies as fast as it can, for a second.
		Name:      "bigread",
		Do:        func(a *attacks.Attacker) { bigReplies(a, 1000).Receive() },
		Held:      128 * mib, // 64 MiB of encoded replies are counted; handlers hold the values that these are made of
		NoLatency: "copying 1 MiB for each reply is the work that the method asks for",
	},
	{
		// Each call has 16 KiB of metadata in pairs of 4 bytes, which take 26 times as much in a
		// map.
		Name: "metadata",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, string(attacks.Block), wire.Unary)
			c.Receive()
			fields := &wire.Fields{Metadata: smallPairs(16<<10 - 64)}
			attacks.Spread(3000, 800*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, fields, nil)
				c.Flush()
			})
		},
	},
	{
		// The same in streams, which may stay open for ever.
		Name: "metadata of streams",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, string(attacks.Quiet), wire.Duplex)
			c.Receive()
			fields := &wire.Fields{Metadata: smallPairs(16<<10 - 64)}
			attacks.Spread(3000, 800*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, fields, nil)
				c.Flush()
			})
		},
	},
	{
		// 200 connections, each of which says 65,000 bytes of itself, and makes no request.
		Name: "settingsmeta",
		Do: func(a *attacks.Attacker) {
			settings := &wire.Limits{Metadata: smallPairs(65_000)}
			attacks.Spread(200, 800*time.Millisecond, func(int) {
				c := a.Dial()
				c.Hello(settings)
				c.Receive()
				c.Flush()
			})
		},
		Held: 24 * mib, // about what 200 connections with 16 KiB each need
	},
	{
		// 4 connections, each with 1024 methods whose names have 65,000 bytes.
		Name: "methods",
		Do: func(a *attacks.Attacker) {
			manyMethods(a, &wire.Binding{Name: bytes.Repeat([]byte{'n'}, 65_000), Codec: []byte("raw")})
		},
		Held: 32 * mib,
	},
	{
		// The same with names of codecs, which the refusal quotes, before the caller has shown a
		// token.
		Name: "methodsauth", Victim: authorized,
		Do: func(a *attacks.Attacker) {
			manyMethods(a, &wire.Binding{Name: []byte("T.Block"), Codec: make([]byte, 65_000)})
		},
		Held: 32 * mib,
	},
	{
		// Open calls, each with 65,000 bytes in a field that is kept as long as the call.
		Name: "fields",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, string(attacks.Block), wire.Unary)
			c.Receive()
			fields := &wire.Fields{Trace: make([]byte, 65_000)}
			attacks.Spread(8000, 900*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, fields, nil)
				c.Flush()
			})
		},
		Held: 96 * mib, // 64 MiB, and the goroutines of 1000 calls
	},
	{
		// 12 connections send all but the last byte of a message of 16 MiB.
		Name: "slowbody", Victim: small,
		Do: func(a *attacks.Attacker) {
			attacks.Spread(12, 600*time.Millisecond, func(int) { unfinished(a, 16*mib) })
		},
		Held: 80 * mib, // the victim has MaxMemory of 64 MiB
		Peak: 300 * mib,
	},
	{
		// 10 connections fill the windows of streams that nobody reads.
		Name: "streams60", Victim: small,
		Do: func(a *attacks.Attacker) {
			attacks.Spread(10, 900*time.Millisecond, func(int) { unreadStreams(a, 700) })
		},
		Held: 96 * mib, // the victim has MaxMemory of 64 MiB, and each stream has a goroutine
		Peak: 300 * mib,
	},
	{
		// 58 bytes that name the highest slot.
		Name: "slots",
		Do: func(a *attacks.Attacker) {
			attacks.Spread(500, 800*time.Millisecond, func(int) {
				c := a.Connect()
				c.Bind(0, string(attacks.Block), wire.Unary)
				c.Request(0, attacks.ID(3*16384-1), 0, nil, nil)
				c.Receive()
				c.Flush()
			})
		},
		Held: 32 * mib, // 64 KiB a connection
	},
	{
		// One message of 16 MiB that decodes to 2.9 GB with a decoder that trusts it; here 2 MiB.
		// Decoders are not bounded but by MaxMessage, so that this tells the factor and not more.
		Name: "amplification of JSON", Victim: codecs,
		Do: func(a *attacks.Attacker) {
			body := append(append([]byte{'['}, bytes.Repeat([]byte("{},"), 2*mib/3)...), '{', '}', ']')
			c := a.Connect()
			c.BindTo(0, &wire.Binding{Name: []byte(attacks.List), Codec: []byte("json")})
			c.Receive()
			c.Send(0, attacks.ID(0), 0, body)
			c.Flush()
			c.Await(1, 5*time.Second)
		},
		Peak:      600 * mib,
		NoLatency: "decoding what a method accepts is its own work",
	},
	{
		// 40 messages that decompress to 16 MiB each, at once.
		Name: "bombsmany of gzip", Victim: codecs,
		Do:        func(a *attacks.Attacker) { bombs(a, "gzip", gzipped(16*mib-64), 40) },
		Peak:      300 * mib,
		NoLatency: "decompressing 16 MiB takes 30 ms of a processor, for each request that is not refused",
	},
	{
		// One message of 16 MiB that exceeds the limit by a little, and one by a lot.
		Name: "bomb of gzip", Victim: codecs,
		Do: func(a *attacks.Attacker) {
			for _, size := range []int{16*mib + 1, 200 * mib} {
				c := a.Connect()
				c.BindTo(0, &wire.Binding{Name: []byte(attacks.Block), Codec: []byte("raw"), Compressor: []byte("gzip")})
				c.Receive()
				c.Send(0, attacks.ID(0), wire.Compressed, gzipped(size))
				c.Flush()
				if !c.Await(1, 3*time.Second) || c.NotProcessed.Load() != 1 {
					a.Errorf("a body of %d bytes was not refused", size)
				}
			}
		},
		Peak:      200 * mib,
		NoLatency: "decompressing 16 MiB takes 30 ms of a processor",
	},
	{
		// Messages that are announced and never come.
		Name: "announced sizes",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, string(attacks.Echo), wire.Unary)
			c.Receive()
			attacks.Spread(400, 500*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), wire.More, &wire.Fields{Size: 16 * mib}, make([]byte, 1000))
				c.Flush()
			})
		},
		Held: 16 * mib,
	},
	{
		// 8000 feeds whose messages the attacker does not read.
		Name: "feeds that nobody reads",
		Do: func(a *attacks.Attacker) {
			c := a.Dial()
			c.Hello(&wire.Limits{StreamWindow: 4 * mib})
			c.Bind(0, string(attacks.Fill), wire.Feed)
			attacks.Spread(8000, 800*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, nil, nil)
				c.Flush()
			})
		},
		Held: 160 * mib, // goroutines and their messages of 4 KiB
	},
	{
		Name: "streams without data",
		Do: func(a *attacks.Attacker) {
			c := a.Connect()
			c.Bind(0, string(attacks.Repeat), wire.Duplex)
			c.Receive()
			attacks.Spread(8000, 800*time.Millisecond, func(i int) {
				c.Request(0, attacks.ID(i), 0, nil, nil)
				c.Flush()
			})
		},
		Held: 160 * mib, // goroutines and their stacks
	},
}

// bigReplies has one connection call a method with a reply of 1 MiB.
func bigReplies(a *attacks.Attacker, calls int) *attacks.Conn {
	c := a.Dial()
	c.Hello(&wire.Limits{})
	c.Bind(0, string(attacks.Big), wire.Unary)
	attacks.Spread(calls, 500*time.Millisecond, func(i int) {
		c.Request(0, attacks.ID(i), 0, nil, nil)
		c.Flush()
	})
	return c
}

// smallPairs returns metadata of that size in pairs of 4 bytes, all different.
func smallPairs(size int) []byte {
	var b []byte
	for i := 0; len(b)+5 <= size; i++ {
		b = wire.AppendPair(b, string([]byte{byte(i), byte(i >> 8)}), "v")
	}
	return b
}

// manyMethods announces 1024 methods on each of 4 connections.
func manyMethods(a *attacks.Attacker, binding *wire.Binding) {
	attacks.Spread(4, 800*time.Millisecond, func(int) {
		c := a.Connect()
		c.Receive()
		for number := range uint16(1024) {
			c.BindTo(number, binding)
			c.Flush()
		}
		c.Request(1023, attacks.ID(0), 0, nil, nil)
		c.Flush()
		c.Await(1, 3*time.Second) // it may have closed the connection as well
	})
}

// unfinished sends all but the last byte of a request.
func unfinished(a *attacks.Attacker, size int) {
	c := a.Connect()
	c.Bind(0, string(attacks.Echo), wire.Unary)
	c.Receive()
	c.Request(0, attacks.ID(0), wire.More, &wire.Fields{Size: uint64(size)}, nil)
	rest := make([]byte, 60_000)
	for left := size - 1; left > 0; left -= len(rest) {
		rest = rest[:min(len(rest), left)]
		c.Message(wire.Header{Type: wire.Data, Flags: wire.More, ID: attacks.ID(0)}, nil, rest)
		if !c.Flush() {
			return
		}
	}
}

// unreadStreams opens streams on one connection, and fills the window of each once it has been
// granted.
func unreadStreams(a *attacks.Attacker, streams int) {
	c := a.Connect()
	c.Bind(0, string(attacks.Quiet), wire.Duplex)
	for i := range streams {
		c.Request(0, attacks.ID(i), 0, nil, nil)
	}
	c.Flush()
	message := make([]byte, 60_000)
	filled := 0
	c.ReceiveCredits(func(id uint32, granted int) {
		if granted >= len(message)+wire.HeaderSize {
			c.WriteNow(wire.AppendFrame(nil, &wire.Header{Type: wire.Data, ID: id}, message))
		} else if granted > wire.HeaderSize {
			c.WriteNow(wire.AppendFrame(nil, &wire.Header{Type: wire.Data, ID: id}, message[:granted-wire.HeaderSize]))
		}
		filled++
	}, streams, 200*time.Millisecond)
}

// bombs sends compressed bodies to a method that keeps its argument until the attacker has left.
func bombs(a *attacks.Attacker, compressor string, body []byte, calls int) {
	c := a.Connect()
	c.BindTo(0, &wire.Binding{Name: []byte(attacks.Block), Codec: []byte("raw"), Compressor: []byte(compressor)})
	c.Receive()
	attacks.Spread(calls, 800*time.Millisecond, func(i int) {
		c.Request(0, attacks.ID(i), wire.Compressed, nil, body)
		c.Flush()
	})
}

func gzipped(size int) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level exists
	_, _ = w.Write(make([]byte, size))                    // a bytes.Buffer takes everything
	_ = w.Close()
	return b.Bytes()
}
