// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Whatever a peer says, a side neither crashes nor hangs, keeps nothing, and uses memory in
// proportion to what was said.

// memoryBound is what n bytes from a peer may make this side allocate.
func memoryBound(n int) uint64 { return uint64(8<<20 + 2048*n) }

// spoken runs one side against what a peer says in one or two writes, and then closes.
func spoken(t *testing.T, said []byte, run func(t *testing.T, own net.Conn, hear func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		own, peer := memoryPair(0)
		used := allocated(func() {
			run(t, own, func() {
				half := len(said) / 2
				_, _ = peer.Write(said[:half])
				synctest.Wait()
				_, _ = peer.Write(said[half:])
				synctest.Wait()
				time.Sleep(100 * time.Millisecond)
				peer.Close()
			})
		})
		if bound := memoryBound(len(said)); used > bound {
			t.Errorf("%d bytes of input made it allocate %d, the bound is %d", len(said), used, bound)
		}
	})
}

func fuzzLimits() mux.Limits {
	return mux.Limits{
		MaxMessage: 1 << 20, MaxOpen: 100, MaxOpenBytes: 1 << 20, MaxMethods: 10, MaxUnsent: 1 << 20,
		KeepAlive: 10 * time.Second, Handshake: 10 * time.Second,
	}
}

// fuzzHandlers echo inline, echo elsewhere, and wait for the end.
func fuzzHandlers() map[string]*handler {
	return map[string]*handler{
		"echo":  {inline: true, serve: answerEcho},
		"other": {serve: answerEcho},
		"third": {inline: true, serve: func(r *mux.Request) {
			late := time.NewTimer(time.Minute)
			defer late.Stop()
			select {
			case <-r.Done():
			case <-late.C: // a one-way request is not ended by its peer
			}
		}},
	}
}

func announced() []byte {
	return bytes.Join([][]byte{hello(nil), method(0, "echo"), method(1, "other"), method(2, "third")}, nil)
}

func serveSpoken(t *testing.T, said []byte) {
	t.Helper()
	spoken(t, said, func(t *testing.T, own net.Conn, hear func()) {
		s := &setup{limits: fuzzLimits(), serves: fuzzHandlers()}
		srv := mux.New(own, nil, false, s.config(t, s.server, s.serves))
		hear()
		<-srv.Ended()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := srv.Tables(); n.InOpen+n.In+n.InBytes != 0 {
			t.Errorf("requests are left: %+v", n)
		}
	})
}

func callSpoken(t *testing.T, said []byte) {
	t.Helper()
	const calls = 6
	var outcomes atomic.Int64
	spoken(t, said, func(t *testing.T, own net.Conn, hear func()) {
		s := &setup{limits: fuzzLimits(), clientServes: fuzzHandlers()}
		c := mux.New(own, nil, true, s.config(t, s.client, s.clientServes))
		for i := range calls {
			out := &mux.Out{Method: methodNamed(i%3, "m"), Body: make([]byte, []int{0, 10, 100_000}[i%3])}
			if i%2 == 0 {
				go func() {
					_, _, _ = callOut(context.Background(), c, out)
					outcomes.Add(1)
				}()
				synctest.Wait() // so that ids have an order
			} else if c.Start(context.Background(), out, completed(func(*mux.Answer, error) { outcomes.Add(1) })) != nil {
				outcomes.Add(1)
			}
		}
		hear()
		<-c.Ended()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := c.Tables(); n.Open+n.Taken+n.OpenBytes+n.Waiting+n.InOpen+n.In != 0 {
			t.Errorf("calls are left: %+v", n)
		}
	})
	if n := outcomes.Load(); n != calls {
		t.Errorf("%d calls had %d outcomes", calls, n)
	}
}

// addConversations gives a fuzz target what clients say in the specification's conversations.
func addConversations(f *testing.F) {
	f.Helper()
	text, err := os.ReadFile("../../spec/vectors/conversations.json")
	if err != nil {
		f.Fatal(err)
	}
	var file struct {
		Conversations []struct{ Steps []conversationStep }
	}
	if err := json.Unmarshal(text, &file); err != nil {
		f.Fatal(err)
	}
	for _, talk := range file.Conversations {
		var client, server []byte
		for _, step := range talk.Steps {
			client, server = append(client, step.Client...), append(server, step.Server...)
		}
		f.Add(bytes.TrimPrefix(client, hello(nil)))
		f.Add(bytes.TrimPrefix(server, []byte(wire.Preface)))
	}
}

func FuzzServe(f *testing.F) {
	addConversations(f)
	f.Fuzz(func(t *testing.T, said []byte) { serveSpoken(t, append(announced(), said...)) })
}

func FuzzClient(f *testing.F) {
	addConversations(f)
	for _, frame := range replies([]uint32{callID(0, 1), callID(1, 1), callID(2, 1), callID(3, 1), callID(4, 1)})[1:] {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, said []byte) { callSpoken(t, append(announced(), said...)) })
}

// frames makes frames of bytes, four of them for each, so that the fuzzer finds sequences rather
// than headers. Most are legal by themselves.
func frames(script []byte) (said []byte) {
	said = announced()
	for ; len(script) >= 4; script = script[4:] {
		kind, slot, generation, size := script[0], uint32(script[1]%4), uint32(script[2]%3), int(script[3])
		h := wire.Header{ID: callID(slot, generation), Arg: uint16(script[2] % 4)}
		var fields *wire.Fields
		if kind&0x80 != 0 {
			fields = &wire.Fields{Size: uint64(size) * 16, Timeout: uint64(size), Metadata: wire.AppendPair(nil, "k", "v")}
		}
		flags := wire.Flags(kind>>4) & (wire.More | wire.HasAttachment)
		if size%5 == 0 {
			flags |= wire.HasChecksum
		}
		switch kind % 12 {
		case 0, 1, 2:
			h.Type, h.Flags = wire.Request, flags
			if size%7 == 0 {
				h.Flags, h.ID = h.Flags&^wire.More|wire.OneWay, 0
			}
		case 3, 4:
			h.Type, h.Flags = wire.Reply, flags
		case 5:
			h.Type, h.Flags = wire.Data, flags
		case 6:
			h.Type, h.Flags = wire.Data, flags|wire.OfReply
		case 7:
			h.Type, size, fields = wire.Cancel, 0, nil
		case 8:
			said = append(said, wire.AppendCredit(nil, 0, 0, &wire.Window{MaxOpen: uint64(size)})...)
			continue
		case 9:
			said = append(said, ping(uint64(size))...)
			continue
		case 10:
			said = append(said, method(uint16(size%4), []string{"echo", "other", "third", "nobody"}[slot])...)
			continue
		default:
			if size < 250 {
				h.Type = wire.Type(0x80 + size)
				break
			}
			said = append(said, wire.AppendGoAway(nil, uint16(size-250), &wire.Drain{Count: uint64(slot)})...)
			continue
		}
		said = append(said, frameOf(h, fields, make([]byte, size))...)
	}
	return said
}

func addScripts(f *testing.F) {
	f.Helper()
	f.Add([]byte{0, 0, 1, 10, 0, 0, 2, 10, 1, 1, 1, 20})                     // requests
	f.Add([]byte{0xa0, 0, 1, 4, 5, 0, 1, 60})                                // a large one
	f.Add([]byte{0xa0, 0, 1, 4, 7, 0, 1, 0, 5, 0, 1, 60})                    // canceled halfway
	f.Add([]byte{3, 0, 1, 9, 0x93, 1, 1, 4, 6, 1, 1, 60, 4, 2, 1, 1})        // replies
	f.Add([]byte{0, 0, 1, 7, 2, 1, 2, 5, 11, 1, 1, 250, 0, 2, 1, 10})        // a drain
	f.Add([]byte{8, 0, 0, 1, 9, 0, 0, 1, 10, 3, 0, 1, 0, 0, 1, 10, 7, 0, 1}) // everything else
}

func FuzzServeFrames(f *testing.F) {
	addScripts(f)
	f.Fuzz(func(t *testing.T, script []byte) { serveSpoken(t, frames(script[:min(len(script), 4000)])) })
}

func FuzzClientFrames(f *testing.F) {
	addScripts(f)
	f.Fuzz(func(t *testing.T, script []byte) { callSpoken(t, frames(script[:min(len(script), 4000)])) })
}

// A prefix of anything, before there is a protocol at all.
func FuzzPreface(f *testing.F) {
	f.Add([]byte(wire.Preface), false)
	f.Add(hello(nil), true)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), false)
	f.Add(bytes.Repeat([]byte{0xba}, 124), false)
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), true)
	f.Fuzz(func(t *testing.T, said []byte, client bool) {
		spoken(t, said, func(t *testing.T, own net.Conn, hear func()) {
			c := mux.New(own, nil, client, new(setup).config(t, mux.Config{Limits: fuzzLimits()}, nil))
			hear()
			<-c.Ended()
			synctest.Wait()
			if !client && !bytes.HasPrefix(said, []byte(wire.Preface)) {
				if rest, _ := io.ReadAll(own.(*memoryConn).peerView()); len(rest) != 0 {
					t.Errorf("a stranger was told %q", rest)
				}
			}
		})
	})
}
