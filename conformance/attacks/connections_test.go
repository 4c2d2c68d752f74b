// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"bytes"
	"math"
	"time"

	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// connections is the attacks with connections as such, and with frames that break the rules.
var connections = []attacks.Attack{
	{
		// 500 connections that send the preface one byte at a time. The victim gives them 500 ms.
		Name: "slowloris", Victim: hasty,
		Do: func(a *attacks.Attacker) {
			conns := dialMany(a, 500)
			for i := range 6 {
				<-time.After(100 * time.Millisecond)
				for _, c := range conns {
					c.Raw([]byte(wire.Preface[i : i+1]))
					c.Flush()
				}
			}
			wantClosed(a, conns)
		},
		Held: 16 * mib,
	},
	{
		Name: "silent connections", Victim: hasty,
		Do:   func(a *attacks.Attacker) { wantClosed(a, dialMany(a, 1000)) },
		Held: 16 * mib,
	},
	{
		// 500 connections that begin a frame of 64 KiB and do not go on. They may stay while they
		// answer pings; these do not.
		Name: "unfinished frames", Victim: hasty,
		Do: func(a *attacks.Attacker) {
			conns := dialMany(a, 500)
			whole := wire.AppendFrame(nil, &wire.Header{Type: wire.Request}, make([]byte, 65_536))
			attacks.Spread(len(conns), 600*time.Millisecond, func(i int) {
				conns[i].Hello(&wire.Limits{})
				conns[i].Raw(whole[:60_000])
				conns[i].Flush()
			})
			wantClosed(a, conns)
		},
		Held: 64 * mib,
	},
	{
		Name: "idle connections",
		Do: func(a *attacks.Attacker) {
			for _, c := range dialMany(a, 1000) {
				c.Hello(&wire.Limits{})
				c.Flush()
			}
		},
		Held: 24 * mib,
	},
	{
		Name: "broken frames",
		Do:   sendBrokenFrames,
		Held: 16 * mib,
	},
	{
		// Limits and credits at the ends of their range.
		Name: "credits",
		Do: func(a *attacks.Attacker) {
			c := a.Dial()
			c.Hello(&wire.Limits{MaxOpen: math.MaxUint64, MaxOpenBytes: 1 << 63, StreamWindow: math.MaxUint64, MaxMessage: 1 << 63})
			c.Bind(0, string(attacks.Fill), wire.Feed)
			c.Bind(1, string(attacks.Echo), wire.Unary)
			for _, n := range []uint64{math.MaxUint64, 1 << 63, 1, 0} {
				c.Raw(wire.AppendCredit(nil, 0, 0, &wire.Window{MaxOpen: n, MaxOpenBytes: n, StreamBytes: n}))
				c.Raw(wire.AppendCredit(nil, wire.OfReply, attacks.ID(0), &wire.Window{StreamBytes: n}))
			}
			c.Request(0, attacks.ID(0), 0, nil, nil) // nobody reads it
			for _, n := range []uint64{math.MaxUint64, 1 << 63, 1, 0} {
				c.Raw(wire.AppendCredit(nil, 0, attacks.ID(0), &wire.Window{StreamBytes: n}))
				c.Raw(wire.AppendCredit(nil, wire.OfReply, attacks.ID(0), &wire.Window{StreamBytes: n}))
			}
			c.Flush()
		},
		Held: 16 * mib,
	},
	{
		// Bodies that are nested deeply, or claim more elements than they have.
		Name: "depth bombs", Victim: codecs,
		Do: func(a *attacks.Attacker) {
			for codec, body := range map[string][]byte{
				"json": bytes.Repeat([]byte{'['}, 4*mib),
				"gob":  append([]byte{0x07, 0xff, 0x82, 0x00, 0xfc}, bytes.Repeat([]byte{0xff}, 64)...),
			} {
				c := a.Connect()
				c.BindTo(0, &wire.Binding{Name: []byte(attacks.List), Codec: []byte(codec)})
				c.Receive()
				c.Send(0, attacks.ID(0), 0, body)
				c.Flush()
				if !c.Await(1, 3*time.Second) || c.Code(0) > 0 {
					a.Errorf("the body in %s was not refused", codec)
				}
			}
		},
		Held: 16 * mib,
	},
}

func dialMany(a *attacks.Attacker, n int) []*attacks.Conn {
	conns := make([]*attacks.Conn, n)
	attacks.Spread(n, 300*time.Millisecond, func(i int) { conns[i] = a.Dial() })
	return conns
}

// wantClosed fails the test unless the victim closes the connections.
func wantClosed(a *attacks.Attacker, conns []*attacks.Conn) {
	for _, c := range conns {
		c.Receive()
	}
	deadline := time.Now().Add(5 * time.Second)
	open := 0
	for _, c := range conns {
		if !c.Closed(time.Until(deadline)) {
			open++
		}
	}
	a.Foundf("%d of %d connections are open", open, len(conns))
	if open > 0 {
		a.Errorf("%d of %d connections are open", open, len(conns))
	}
}

// sendBrokenFrames sends what breaks the rules of spec/wire.md, each on a connection of its own.
func sendBrokenFrames(a *attacks.Attacker) {
	header := func(h wire.Header) []byte {
		b := make([]byte, wire.HeaderSize)
		wire.PutHeader(b, &h)
		return b
	}
	frame := func(h wire.Header, payload string) []byte { return wire.AppendFrame(nil, &h, []byte(payload)) }
	request := func(id uint32) []byte { return frame(wire.Header{Type: wire.Request, ID: id}, "") }
	id := attacks.ID(0)
	broken := [][]byte{
		header(wire.Header{Len: 65_537, Type: wire.Request, ID: id}),
		header(wire.Header{Len: math.MaxUint32, Type: wire.Data, ID: id}),
		frame(wire.Header{Type: wire.Settings}, ""),
		frame(wire.Header{Type: 0x7f}, ""),
		frame(wire.Header{Type: wire.Ping}, "short"),
		frame(wire.Header{Type: wire.Method, Arg: 1024}, "\x03\x01a"),
		frame(wire.Header{Type: wire.Method}, "\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
		frame(wire.Header{Type: wire.Credit}, "\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
		frame(wire.Header{Type: wire.GoAway}, "\x03\xff"),
		frame(wire.Header{Type: wire.Request, Arg: 7, ID: id}, ""), // no such number
		request(5),                          // generation 0
		request(attacks.ID(1<<20 - 1)),      // a slot beyond all limits
		append(request(id), request(id)...), // a slot that is open
		frame(wire.Header{Type: wire.GoAway, Arg: 13}, ""),
		{0xff, 0xfe, 0xfd},
		frame(wire.Header{Type: wire.Data, ID: id}, "for nothing"),
		frame(wire.Header{Type: wire.Reply, ID: id}, "to nothing"),
		frame(wire.Header{Type: wire.Cancel, ID: id}, ""),
		frame(wire.Header{Type: wire.Credit, ID: id}, "\x12\x01"),
		frame(wire.Header{Type: wire.MethodInfo, Arg: 9}, "\xff"),
		frame(wire.Header{Type: wire.Request, Flags: wire.HasFields, ID: id}, "\xff\xff"),
		frame(wire.Header{Type: wire.Request, Flags: wire.HasChecksum, ID: id}, "abcd"),
		frame(wire.Header{Type: wire.Request, Flags: wire.HasAttachment, ID: id}, "\xff\xff\xff\xff\x01"),
		// no end of time
		frame(wire.Header{Type: wire.Request, Flags: wire.HasFields, ID: id}, "\x0b\x00\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
		frame(wire.Header{Type: wire.Request, Flags: wire.HasFields | wire.More, ID: id}, "\x0b\x00\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
		frame(wire.Header{Type: wire.Request, Flags: wire.More, ID: id}, "no size"),
	}
	attacks.Spread(10*len(broken), 700*time.Millisecond, func(i int) {
		c := a.Connect()
		c.Bind(0, string(attacks.Block), wire.Unary)
		c.Raw(broken[i%len(broken)])
		c.Receive()
		c.Flush()
	})
}
