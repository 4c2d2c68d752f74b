// SPDX-License-Identifier: Apache-2.0

// Package klauspost has no code but this test: attacks with compressed messages against a server
// with the compressors of this module.
package klauspost_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/klauspost/s2"
	"github.com/yodel-rpc/yodel/compress/klauspost/snappy"
	"github.com/yodel-rpc/yodel/compress/klauspost/zstd"
	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/yodeltest"
)

const mib = attacks.MiB

var compressors = []compress.Compressor{s2.Compressor, snappy.Compressor, zstd.Compressor}

func TestMain(m *testing.M) {
	if !attacks.PlayRole(map[string]attacks.Victim{"": {Options: yodel.ServerOptions{Compressors: compressors}}}, nil) {
		yodeltest.VerifyNoLeaks(m)
	}
}

// TestAttacksWithCompressedMessages sends messages that are small on the wire and large in memory,
// or claim to be.
func TestAttacksWithCompressedMessages(t *testing.T) {
	var all []attacks.Attack
	for _, compressor := range compressors {
		bomb, err := compressor.Append(nil, make([]byte, 16*mib-64))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, attacks.Attack{
			// 60 messages of 16 MiB each.
			Name:      "bombsmany of " + compressor.Name(),
			Do:        func(a *attacks.Attacker) { send(a, compressor, bomb, 60) },
			Peak:      300 * mib,
			Held:      68 * mib, // 64 MiB of messages, and buffers
			NoLatency: "decompressing 16 MiB is work of milliseconds, for each request that is not refused",
		}, attacks.Attack{
			// 300 messages of a few bytes that claim 16 MiB each.
			Name: "lies in " + compressor.Name(),
			Do: func(a *attacks.Attacker) {
				send(a, compressor, append(binary.AppendUvarint(nil, 16*mib-64), 0, 0), 300)
			},
			Held: 16 * mib,
		})
	}
	attacks.Run(t, all)
}

// send calls a method that keeps its argument until the attacker has left.
func send(a *attacks.Attacker, compressor compress.Compressor, body []byte, calls int) {
	c := a.Connect()
	c.BindTo(0, &wire.Binding{Name: []byte(attacks.Block), Codec: []byte("raw"), Compressor: []byte(compressor.Name())})
	c.Receive()
	attacks.Spread(calls, 800*time.Millisecond, func(i int) {
		c.Send(0, attacks.ID(i), wire.Compressed, body)
		c.Flush()
	})
}
