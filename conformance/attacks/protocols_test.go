// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/rpc"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/internal/hessian"
)

// protocols is the attacks in other protocols than yodel's own. The good client speaks yodel.
var protocols = []attacks.Attack{
	{
		// 600 connections that send their first request one byte at a time, for 600 ms. The victim
		// gives them 500 ms until the protocol and the header are known, and a second for the rest.
		Name: "first bytes of all protocols", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			conns, all := dialMany(a, 600), speakers()
			for at := range 6 {
				<-time.After(100 * time.Millisecond)
				for i, c := range conns {
					c.Raw(all[i%len(all)].echo[at : at+1])
					c.Flush()
				}
			}
			wantEnded(a, conns)
		},
		Held: 48 * mib,
	},
	{
		// A client of another protocol may be silent for five minutes, which costs little.
		Name: "silent clients of other protocols", Victim: polyglot,
		Do:   func(a *attacks.Attacker) { dialMany(a, 1000) },
		Held: 16 * mib,
	},
	{
		// 240 connections that begin a request of 1 MiB, and do not go on after 60 KiB.
		Name: "unfinished requests of all protocols", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			conns, all := dialMany(a, 240), unfinishedRequests(1<<20, 60<<10)
			attacks.Spread(len(conns), 600*time.Millisecond, func(i int) {
				conns[i].Raw(all[i%len(all)])
				conns[i].Flush()
			})
			wantEnded(a, conns)
		},
		Held: 96 * mib,
	},
	{
		// 80 connections that begin a request of 15 MiB and send 5 KiB of it. What they announce is
		// nine times what the victim lets all requests in other protocols hold.
		Name: "announced requests of all protocols", Victim: patient,
		Do: func(a *attacks.Attacker) {
			conns, all := dialMany(a, 80), unfinishedRequests(15<<20, 5<<10)
			attacks.Spread(len(conns), 400*time.Millisecond, func(i int) {
				conns[i].Raw(all[i%len(all)])
				conns[i].Flush()
			})
			client := &http.Client{Timeout: 2 * time.Second}
			defer client.CloseIdleConnections()
			for i := range 50 {
				if err := postEcho(client, a.Addr); err != nil {
					a.Errorf("call %d of a good client over HTTP: %v", i, err)
					break
				}
			}
		},
		Held: 16 * mib,
	},
	{
		Name: "sizes that lie in all protocols", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			all := lies()
			attacks.Spread(30*len(all), 700*time.Millisecond, func(i int) {
				c := a.Dial()
				c.Raw(all[i%len(all)])
				c.Flush()
				c.Discard()
			})
		},
		Held: 32 * mib,
	},
	{
		// Calls with a reply of 1 MiB, 250 on each of 4 connections in each protocol but net/rpc.
		// The attacker reads none of them.
		Name: "noread in other protocols", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			for range 4 {
				for _, s := range speakers() {
					if s.big == nil {
						continue
					}
					c := a.Dial()
					for range 250 {
						c.Raw(s.big)
					}
					c.Flush()
				}
				c := a.Dial()
				c.Raw(preface(0))
				for i := range 250 {
					c.Raw(stream(2*i+1, "/T.Big", true))
				}
				c.Flush()
			}
		},
		Held: 512 * mib, // at most 1000 handlers run; each holds the value that it returns, until the client is cut off
		Peak: 1400 * mib,

		NoLatency: "copying 1 MiB for each reply is the work that the method asks for",
	},
	{
		// 100,000 streams of HTTP/2 that are canceled at once.
		Name: "rapid reset of HTTP/2", Victim: polyglot,
		Do:        func(a *attacks.Attacker) { rapidReset(a, true) },
		Held:      32 * mib,
		NoLatency: "the work is that of the two processors",
	},
	{
		// With the default times, a timer of a stream that outlives the stream does so for 30 s.
		Name: "rapid reset of HTTP/2, default times", Victim: patient,
		Do:        func(a *attacks.Attacker) { rapidReset(a, true) },
		Held:      32 * mib,
		NoLatency: "the work is that of the two processors",
	},
	{
		// The same with requests that have not ended, on 20 connections, because the victim ends
		// each after 5,000 resets.
		Name: "rapid reset of unfinished requests", Victim: patient,
		Do: func(a *attacks.Attacker) {
			for range 20 {
				rapidReset(a, false)
			}
		},
		Held:      32 * mib,
		NoLatency: "the work is that of the two processors",
	},
	{
		// 4000 calls on 16 connections, which do not end before the attacker leaves.
		Name: "open calls over HTTP/2", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			attacks.Spread(16, 800*time.Millisecond, func(int) {
				c := a.Dial()
				c.Discard()
				c.Raw(preface(65_535))
				for i := range 250 {
					c.Raw(stream(2*i+1, "/T.Block", true))
				}
				c.Flush()
			})
		},
		Held:      128 * mib, // 20 KiB for each request, with its goroutines in net/http
		NoLatency: "250 requests in one write are some 20 ms of work for net/http, and the calls of others wait behind it",
	},
	{
		// Requests of some 200 KB that are 200 MiB when they are decompressed.
		Name: "bombs in other protocols", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			all := foreignBombs()
			attacks.Spread(20*len(all), 700*time.Millisecond, func(i int) {
				c := a.Dial()
				c.Raw(all[i%len(all)])
				c.Flush()
				c.Discard()
			})
		},
		Held:      288 * mib, // the budget of the victim
		Peak:      512 * mib,
		NoLatency: "to decompress up to the limit is work",
	},
	{
		// Requests of Dubbo of 3 MiB whose values take much more memory or work when they are
		// decoded.
		Name: "bombs in Dubbo", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			all := dubboBombs()
			attacks.Spread(8*len(all), 700*time.Millisecond, func(i int) {
				c := a.Dial()
				c.Raw(all[i%len(all)])
				c.Flush()
				c.Discard()
			})
		},
		Held:      288 * mib, // the budget of the victim
		Peak:      640 * mib, // the collector runs when the heap has doubled
		NoLatency: "to read 150 MiB of requests is work",
	},
	{
		Name: "depth bombs in other protocols", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			for _, request := range deep() {
				c := a.Dial()
				c.Raw(request)
				c.Flush()
				c.Discard()
			}
		},
		Held: 64 * mib,
	},
	{
		// Open calls with as much metadata as a request may have, in as many pairs.
		Name: "metadata in other protocols", Victim: polyglot,
		Do: func(a *attacks.Attacker) {
			pairs := 0
			var block, headers bytes.Buffer
			for ; block.Len() < 14<<10; pairs++ {
				text(&block, fmt.Sprintf("k%d", pairs))
				text(&block, "v")
				fmt.Fprintf(&headers, "k%d: v\r\n", pairs)
			}
			attacks.Spread(1000, 800*time.Millisecond, func(i int) {
				c := a.Dial()
				if i%2 == 0 {
					c.Raw(rpcxFrame("T", "Block", block.String(), "", -1))
				} else {
					c.Raw(post("/T.Block", headers.String(), `""`))
				}
				c.Flush()
				c.Discard()
			})
		},
		Held:      192 * mib, // 1000 connections with 16 KiB of metadata each, also in net/http
		NoLatency: "to parse 7 MiB of pairs and to make maps of them is work",
	},
	{
		// One connection with 8000 open calls, each with as many pairs as it may have.
		Name: "metadata over rpcx on one connection", Victim: patient,
		Do: func(a *attacks.Attacker) {
			var block bytes.Buffer
			for i := range 120 {
				text(&block, fmt.Sprintf("k%d", i))
				text(&block, "v")
			}
			openOverRPCX(a, 8000, block.String())
		},
		NoLatency: "to make 8000 maps with 120 pairs is work",
	},
	{
		// One connection with as many open calls as it gets. Each has a goroutine.
		Name: "open calls over rpcx on one connection", Victim: patient,
		Do:        func(a *attacks.Attacker) { openOverRPCX(a, 15_360, "") },
		NoLatency: "to start 15,360 goroutines is work",
	},
}

// openOverRPCX makes calls on one connection that do not end before the attacker leaves.
func openOverRPCX(a *attacks.Attacker, calls int, metadata string) {
	c := a.Dial()
	c.Discard()
	attacks.Spread(calls, 800*time.Millisecond, func(int) {
		c.Raw(rpcxFrame("T", "Block", metadata, "", -1))
		c.Flush()
	})
}

// rapidReset opens 100,000 streams and cancels each at once, until the victim ends the connection.
// Whole ends the requests.
func rapidReset(a *attacks.Attacker, whole bool) {
	c := a.Dial()
	c.Raw(preface(65_535))
	c.Discard()
	for i := range 100_000 {
		c.Raw(stream(2*i+1, "/T.Block", whole))
		c.Raw(frame(3, 0, 2*i+1, "\x00\x00\x00\x08"))
		if i%100 == 99 && !c.Flush() {
			break
		}
	}
}

// wantEnded is wantClosed for a victim that speaks other protocols.
func wantEnded(a *attacks.Attacker, conns []*attacks.Conn) {
	for _, c := range conns {
		c.Discard()
	}
	open := 0
	for deadline, i := time.Now().Add(5*time.Second), 0; i < len(conns); i++ {
		if !conns[i].Closed(time.Until(deadline)) {
			open++
		}
	}
	if a.Foundf("%d of %d connections are open", open, len(conns)); open > 0 {
		a.Errorf("%d of %d connections are open", open, len(conns))
	}
}

// A speaker has requests in one protocol.
type speaker struct {
	name      string
	echo, big []byte
}

// speakers returns one for each protocol.
func speakers() []speaker {
	return []speaker{
		{"HTTP/1", post("/T.Echo", "", `"aGk="`), post("/T.Big", "", `""`)},
		{"HTTP/2", append(preface(65_535), stream(1, "/T.Echo", false)...), nil},
		{"rpcx", rpcxFrame("T", "Echo", "", "hi", -1), rpcxFrame("T", "Big", "", "", -1)},
		{"Thrift", thriftFrame("Echo", "hi", -1), thriftFrame("Big", "", -1)},
		{"JSON-RPC", []byte(`{"jsonrpc":"2.0","id":1,"method":"T.Echo","params":["aGk="]}`), []byte(`{"jsonrpc":"2.0","id":1,"method":"T.Big","params":[""]}`)},
		{"Dubbo", dubboFrame("Echo", binaryType, "\x22hiHZ", -1), dubboFrame("Big", binaryType, "\x20HZ", -1)},
		{"net/rpc", []byte("\x2e\x7f\x03\x01\x01\x07Request"), nil},
	}
}

// unfinishedRequests returns the first bytes of a request of a size, for each protocol.
func unfinishedRequests(size, sent int) (all [][]byte) {
	part := strings.Repeat("x", sent)
	var netRPC bytes.Buffer
	encoder := gob.NewEncoder(&netRPC)
	_ = encoder.Encode(rpc.Request{ServiceMethod: "T.Echo", Seq: 1}) // a buffer does not fail
	_ = encoder.Encode(make([]byte, size))                           // as above
	beginning := part[:min(sent, 16_000)]
	envelope := string(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)))
	return [][]byte{
		fmt.Appendf(nil, "POST /T.Echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n\"%s", size, part),
		bytes.Join([][]byte{preface(65_535), stream(1, "/T.Echo", false), frame(0, 0, 1, `"`+beginning)}, nil),
		bytes.Join([][]byte{preface(65_535), grpcStream(1, "/T.Echo"), frame(0, 0, 1, envelope+beginning)}, nil),
		rpcxFrame("T", "Echo", "", part, size),
		thriftFrame("Echo", part, size),
		[]byte(`{"jsonrpc":"2.0","id":1,"method":"T.Echo","params":["` + part),
		netRPC.Bytes()[:sent],
		dubboFrame("Echo", binaryType, "A\xff\xff"+part, size),
	}
}

// postEcho calls the method Echo over HTTP.
func postEcho(client *http.Client, addr string) error {
	response, err := client.Post("http://"+addr+"/T.Echo", "application/json", strings.NewReader(`"aGk="`))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != `"aGk="` {
		return fmt.Errorf("%s: %q, %v", response.Status, body, err)
	}
	return nil
}

// lies returns requests that claim to be as large as their protocol allows.
func lies() [][]byte {
	list := "\x80\x01\x00\x01\x00\x00\x00\x04List\x00\x00\x00\x01\x0f\x00\x01\x0c\x7f\xff\xff\xff" // 2³¹-1 structs
	return [][]byte{
		[]byte("POST /T.Echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9223372036854775807\r\n\r\n\""),
		[]byte("POST /T.Echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n\""),
		bytes.Join([][]byte{preface(65_535), grpcStream(1, "/T.Echo"), frame(0, 0, 1, "\x00\xff\xff\xff\xff")}, nil),
		rpcxFrame("T", "Echo", "", "", math.MaxUint32-100),
		binary.BigEndian.AppendUint32(rpcxFrame("", "", "", "", 1<<20)[:16], math.MaxUint32), // the length of the path
		thriftFrame("Echo", "", math.MaxInt32),
		append(binary.BigEndian.AppendUint32(nil, 40), list...),
		[]byte(list),
		[]byte("\x80\x01\x00\x01\x7f\xff\xff\xff"), // the length of the name
		dubboFrame("Echo", binaryType, "", math.MaxInt32),
		dubboFrame("Echo", binaryType, "", math.MaxUint32),
		dubboFrame("List", listType, "XI\x7f\xff\xff\xff", -1),      // the length of a list
		dubboFrame("List", listType, "C\x01aI\x7f\xff\xff\xff", -1), // the number of fields of a class
		[]byte("\xf8\x7f\xff\xff\xff\xff\xff\xff\xff\x03\x01\x01\x07Request"),
	}
}

// foreignBombs returns requests of 200 MiB that are compressed with gzip.
func foreignBombs() [][]byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	piece := bytes.Repeat([]byte(" "), 1<<20)
	for range 200 {
		_, _ = w.Write(piece) // b does not fail
	}
	_ = w.Close() // as above
	bomb := b.String()
	envelope := string(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(bomb)))) + bomb
	grpc := append(preface(65_535), grpcStream(1, "/T.Echo")...)
	for rest := envelope[:60_000]; rest != ""; { // the window of a connection has 65,535 bytes; the server does not wait for the rest in vain
		n := min(len(rest), 16_000)
		grpc = append(grpc, frame(0, 0, 1, rest[:n])...)
		rest = rest[n:]
	}
	compressed := rpcxFrame("T", "Echo", "", bomb, -1)
	compressed[2] |= 1 << 2
	return [][]byte{post("/T.Echo", "Content-Encoding: gzip\r\n", bomb), grpc, compressed}
}

// deep returns requests that are nested a million times.
func deep() [][]byte {
	nested := strings.Repeat("[", 1<<20)
	structs := "\x80\x01\x00\x01\x00\x00\x00\x04List\x00\x00\x00\x01" + strings.Repeat("\x0c\x00\x01", 1<<19)
	return [][]byte{
		post("/T.List", "", nested),
		[]byte(`{"jsonrpc":"2.0","id":1,"method":"T.List","params":` + nested),
		[]byte(structs),
		append(binary.BigEndian.AppendUint32(nil, uint32(len(structs))), structs...),
		dubboFrame("List", listType, strings.Repeat("\x79", 1<<20), -1),
	}
}

// The descriptors of types that Dubbo sends.
const (
	binaryType = "[B"
	listType   = "Ljava/util/List;"
)

// dubboFrame returns a request of Dubbo. Rest is the encoded arguments and the attachments. Total
// is the size that the body claims, or -1 for its own.
func dubboFrame(method, types, rest string, total int) []byte {
	var body []byte
	for _, text := range []string{"2.0.2", "T", "0.0.0", method, types} {
		body = hessian.AppendText(body, text)
	}
	if body = append(body, rest...); total < 0 {
		total = len(body)
	}
	head := append([]byte("\xda\xbb\xc2\x00"), make([]byte, 8)...)
	return append(binary.BigEndian.AppendUint32(head, uint32(total)), body...)
}

// dubboBombs returns requests of Dubbo whose values take much more memory or work than they have
// bytes. The server refuses each of them before it decodes the arguments.
func dubboBombs() [][]byte {
	const n = 3 << 20
	list := func(n int) string { return string(hessian.AppendInt([]byte{'X'}, int32(n))) }
	lists := list(n) + strings.Repeat("\x78", n) // empty ones
	maps := list(n/2) + strings.Repeat("HZ", n/2)
	class := string(hessian.AppendInt(hessian.AppendText([]byte{'C'}, ""), n)) + strings.Repeat("\x00", n) + "N" // with empty names
	long := string(hessian.AppendText([]byte{'C'}, strings.Repeat("x", n/2))) + "\x90N"
	references := "\x7a\x79" + long + list(n/4) + strings.Repeat("Q\x91", n/4) // each to a list with a long definition of a class
	two := listType + listType
	return [][]byte{
		dubboFrame("Echo", binaryType, "\x20H\x01a"+lists+"Z", -1),
		dubboFrame("Echo", binaryType, "\x20H\x01a"+references+"Z", -1),
		dubboFrame("List", two, lists+"NHZ", -1),
		dubboFrame("List", two, "N"+maps+"HZ", -1),
		dubboFrame("List", two, "N"+references+"HZ", -1),
		dubboFrame("List", two, class+"NHZ", -1),
		dubboFrame("$echo", "Ljava/lang/Object;", lists+"HZ", -1),
	}
}

// post returns a request of HTTP/1 with a body in JSON.
func post(path, headers, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", path, headers, len(body), body)
}

// preface returns how a client of HTTP/2 begins, with the window of its streams.
func preface(window uint32) []byte {
	settings := string(binary.BigEndian.AppendUint32([]byte{0, 4}, window))
	return append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0, settings)...)
}

// frame returns a frame of HTTP/2.
func frame(kind, flags byte, stream int, payload string) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, uint32(stream)), payload...)
}

// stream opens a stream of HTTP/2 with a request in JSON. Whole ends it, with an empty byte slice.
func stream(id int, path string, whole bool) []byte {
	b := frame(1, 4, id, "\x83\x86\x04"+string(rune(len(path)))+path+"\x01\x01a\x0f\x10\x10application/json")
	if whole {
		b = append(b, frame(0, 1, id, `"`+base64.StdEncoding.EncodeToString(nil)+`"`)...)
	}
	return b
}

// grpcStream opens a stream with a request of gRPC that is compressed with gzip.
func grpcStream(id int, path string) []byte {
	return frame(1, 4, id, "\x83\x86\x04"+string(rune(len(path)))+path+"\x01\x01a\x0f\x10\x15application/grpc+json\x00\x0dgrpc-encoding\x04gzip")
}

// text appends a text of rpcx.
func text(b *bytes.Buffer, s string) {
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(s))))
	b.WriteString(s)
}

// rpcxFrame returns a request of rpcx. Total is the size that it claims, or -1 for its own.
func rpcxFrame(path, method, metadata, payload string, total int) []byte {
	var b bytes.Buffer
	for _, part := range []string{path, method, metadata} {
		text(&b, part)
	}
	size := len(payload)
	if total < 0 {
		total = b.Len() + 4 + size
	} else if size > 0 {
		size = total - b.Len() - 4
	}
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(size)))
	b.WriteString(payload)
	header := append([]byte{8, 0, 0, 0}, make([]byte, 8)...)
	return append(binary.BigEndian.AppendUint32(header, uint32(total)), b.Bytes()...)
}

// thriftFrame returns a call in the binary protocol, in a frame. Total is the size that the frame
// claims, or -1 for its own.
func thriftFrame(method, payload string, total int) []byte {
	var b bytes.Buffer
	b.WriteString("\x80\x01\x00\x01")
	text(&b, method)
	b.WriteString("\x00\x00\x00\x01\x0b\x00\x01")
	if text(&b, payload); total < 0 {
		b.WriteByte(0)
		total = b.Len()
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(total)), b.Bytes()...)
}
