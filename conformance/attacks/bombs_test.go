// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// busy is what one processor that decompresses and decodes may cost a call on a machine with two,
// of which the attacker takes the other one.
const busy = 300 * time.Millisecond

// bombs16K is floods of messages of 16 KiB that would be 16 MiB after decompression. The victim has
// default limits. One that decompresses 16 MiB for each message, on all processors, takes 450 MiB
// (over rpcx 170 MiB), and the good client's p99 is 400 ms to 1.4 s. With the limit of 100 times
// and the gate, it takes 30 to 70 MiB.
var bombs16K = []attacks.Attack{
	{
		Name: "bombs of 16 KiB over gRPC", Victim: compressing,
		Do: func(a *attacks.Attacker) {
			message := bomb16K("\x00")
			envelope := string(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(message)))) + message
			conns := make([]*attacks.Conn, 40)
			attacks.Spread(len(conns), 200*time.Millisecond, func(i int) {
				conns[i] = a.Dial()
				conns[i].Raw(preface(65_535))
				conns[i].Raw(frame(8, 0, 0, "\x7f\x00\x00\x00")) // the server sends as much as it likes
				conns[i].Discard()
			})
			attacks.Spread(20*len(conns), 2*time.Second, func(i int) {
				c, id := conns[i%len(conns)], 2*(i/len(conns))+1
				c.Raw(grpcStream(id, "/T.Echo"))
				for rest := envelope; rest != ""; {
					n := min(len(rest), 16_000)
					flags := byte(0)
					if n == len(rest) {
						flags = 1
					}
					c.Raw(frame(0, flags, id, rest[:n]))
					rest = rest[n:]
				}
				c.Flush()
			})
		},
		Held:  96 * mib, // 40 connections of net/http with 20 streams each
		Peak:  160 * mib,
		Floor: busy,
	},
	{
		Name: "bombs of 16 KiB over HTTP", Victim: compressing,
		Do: func(a *attacks.Attacker) {
			request := post("/T.Echo", "Content-Encoding: gzip\r\n", bomb16K("\x00"))
			attacks.Spread(400, 2*time.Second, func(int) {
				c := a.Dial()
				c.Raw(request)
				c.Flush()
				c.Discard()
			})
		},
		Held:  96 * mib, // 400 connections of net/http
		Peak:  160 * mib,
		Floor: busy,
	},
	{
		// JSON that becomes large when it is parsed.
		Name: "bombs of 16 KiB of JSON", Victim: compressing,
		Do: func(a *attacks.Attacker) {
			request := post("/T.List", "Content-Encoding: gzip\r\n", bomb16K(" "))
			attacks.Spread(200, 2*time.Second, func(int) {
				c := a.Dial()
				c.Raw(request)
				c.Flush()
				c.Discard()
			})
		},
		Peak:  160 * mib,
		Floor: busy,
	},
	{
		Name: "bombs of 16 KiB over rpcx", Victim: compressing,
		Do: func(a *attacks.Attacker) {
			message := rpcxFrame("T", "Echo", "", bomb16K("\x00"), -1)
			message[2] |= 1 << 2
			c := a.Dial()
			c.Discard()
			attacks.Spread(400, 2*time.Second, func(int) {
				c.Raw(message)
				c.Flush()
			})
		},
		Peak:  96 * mib,
		Floor: busy,
	},
	{
		Name: "bombs of 16 KiB", Victim: compressing,
		Do: func(a *attacks.Attacker) {
			body := []byte(bomb16K("\x00"))
			conns := make([]*attacks.Conn, 40)
			for i := range conns {
				conns[i] = a.Connect()
				conns[i].BindTo(0, &wire.Binding{Name: []byte(attacks.Block), Codec: []byte("json"), Compressor: []byte("gzip")})
				conns[i].Receive()
			}
			attacks.Spread(20*len(conns), 2*time.Second, func(i int) {
				c := conns[i%len(conns)]
				c.Request(0, attacks.ID(i/len(conns)), wire.Compressed, nil, body)
				c.Flush()
			})
		},
		Peak:  160 * mib,
		Floor: busy,
	},
}

// bomb16K returns 16 MiB of one byte, compressed with gzip to 16 KiB.
func bomb16K(of string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(strings.Repeat(of, 16<<20-64))) // b does not fail
	_ = w.Close()                                         // as above
	return b.String()
}
