// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// What a connection does must not depend on how its bytes were cut up on their way.

// conversation is what a client says to a server in bytes, with something of everything.
func conversation() [][]byte {
	checksummed := frameOf(wire.Header{Type: wire.Request, Flags: wire.HasChecksum, ID: callID(1, 1)}, nil, []byte("checked"))
	large := [][]byte{
		frameOf(wire.Header{Type: wire.Request, Arg: 1, Flags: wire.More, ID: callID(2, 1)}, &wire.Fields{Size: 10}, []byte("0123")),
		frameOf(wire.Header{Type: wire.Data, Flags: wire.More, ID: callID(2, 1)}, nil, []byte("4567")),
		frameOf(wire.Header{Type: wire.Data, ID: callID(2, 1)}, nil, []byte("89")),
	}
	frames := [][]byte{
		hello(&wire.Limits{MaxOpen: 10, Agent: []byte("test")}),
		method(0, "echo"), method(1, "other"),
		request(0, callID(0, 1), "inline"),
		checksummed,
		request(1, callID(3, 1), "elsewhere"),
	}
	frames = append(frames, large...)
	return append(frames,
		frameOf(wire.Header{Type: wire.Request, Flags: wire.OneWay}, nil, []byte("one-way")),
		frameOf(wire.Header{Type: 0x90, Arg: 7}, nil, []byte("of a later version")),
		frameOf(wire.Header{Type: wire.Cancel, Arg: codeCanceled, ID: callID(9, 1)}, nil, nil),
		frameOf(wire.Header{Type: wire.Request, ID: callID(4, 1)}, &wire.Fields{Metadata: wire.AppendPair(nil, "k", "v")}, []byte("fields")),
		request(0, callID(0, 2), "again"),
		ping(1),
	)
}

// answers feeds a server and returns its frames, sorted: those of several goroutines have no order.
func answers(t *testing.T, feed func(w io.Writer)) (frames []string, executed string) {
	t.Helper()
	ran := make(chan string, 100)
	s := &setup{serves: map[string]*handler{
		"echo":  {inline: true, serve: func(r *mux.Request) { ran <- string(r.Body); answerEcho(r) }},
		"other": {serve: func(r *mux.Request) { ran <- string(r.Body); answerEcho(r) }},
	}}
	client, server := memoryPair(0)
	srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
	feed(client)
	synctest.Wait()
	client.out.end(io.EOF)
	<-srv.Ended()
	if op, ok := srv.Err().(*mux.IOError); !ok || op.Op != mux.EndOfStream {
		t.Errorf("the server ended with %v, want the end of the stream", srv.Err())
	}
	synctest.Wait()
	close(ran)
	var bodies []string
	for body := range ran {
		bodies = append(bodies, body)
	}
	slices.Sort(bodies)
	said, err := io.ReadAll(client)
	if err != nil {
		t.Fatal(err)
	}
	said, ok := bytes.CutPrefix(said, []byte(wire.Preface))
	if !ok {
		t.Fatalf("the server began with %q", said)
	}
	for len(said) > 0 {
		n := wire.HeaderSize + int(wire.ParseHeader(said).Len)
		frames = append(frames, string(said[:n]))
		said = said[n:]
	}
	slices.Sort(frames)
	return frames, fmt.Sprintf("%q", bodies)
}

func TestAServerReadsFramesHoweverTheyAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := slices.Concat(conversation()...)
		want, ran := answers(t, func(w io.Writer) { _, _ = w.Write(all) })
		if len(want) != 10 { // settings, 2 infos, 6 replies, a pong
			t.Fatalf("got %d frames from the whole: %q", len(want), want)
		}
		compare := func(how string, feed func(w io.Writer)) {
			got, ranNow := answers(t, feed)
			if !slices.Equal(got, want) || ranNow != ran {
				t.Fatalf("%s:\n got %q\nwant %q\n got %s\nwant %s", how, got, want, ranNow, ran)
			}
		}
		for i := 1; i < len(all); i++ {
			compare(fmt.Sprintf("cut at %d", i), func(w io.Writer) {
				_, _ = w.Write(all[:i])
				synctest.Wait()
				_, _ = w.Write(all[i:])
			})
		}
		compare("byte by byte", func(w io.Writer) {
			for i := range all {
				_, _ = w.Write(all[i : i+1])
				synctest.Wait()
			}
		})
	})
}

// replies is what a server says to a client that has made five calls.
func replies(ids []uint32) [][]byte {
	return [][]byte{
		hello(nil),
		wire.AppendMethodInfo(nil, 0, 1, &wire.Info{Known: 1}),
		reply(ids[0], "first"),
		frameOf(wire.Header{Type: wire.Reply, Flags: wire.More, ID: ids[1]}, &wire.Fields{Size: 6}, []byte("se")),
		frameOf(wire.Header{Type: wire.Reply, Flags: wire.HasChecksum, ID: ids[2]}, nil, []byte("third")),
		frameOf(wire.Header{Type: wire.Data, Flags: wire.OfReply | wire.More | wire.HasChecksum, ID: ids[1]}, nil, []byte("con")),
		frameOf(wire.Header{Type: wire.Data, Flags: wire.OfReply, ID: ids[1]}, nil, []byte("d")),
		wire.AppendCredit(nil, 0, 0, &wire.Window{MaxOpen: 5}),
		frameOf(wire.Header{Type: wire.Reply, Arg: 5, Flags: wire.NotProcessed, ID: ids[3]}, &wire.Fields{Message: []byte("no")}, []byte("fourth")),
		frameOf(wire.Header{Type: 0xff}, nil, []byte("of a later version")),
		reply(ids[4], "fifth"),
		reply(ids[0], "too late"),
	}
}

// outcomes feeds a client that has made five calls, two of them asynchronous, and returns how they
// ended.
func outcomes(t *testing.T, feed func(w io.Writer, ids []uint32)) string {
	t.Helper()
	s := &setup{}
	client, server := memoryPair(0)
	c := mux.New(client, nil, true, s.config(t, s.client, nil))
	peer := newRawPeer(t, server)
	ended := make(chan string, 5)
	told := func(i int, a *mux.Answer, err error) {
		if err != nil {
			ended <- fmt.Sprintf("%d %v", i, err)
			return
		}
		ended <- fmt.Sprintf("%d code %d flags %#x fields %q body %q", i, a.Code, a.Flags, a.Fields, a.Body)
	}
	var ids []uint32
	for i := range 5 {
		out := &mux.Out{Method: echo}
		if i%2 == 0 {
			go func() {
				a, err := c.Call(context.Background(), out)
				told(i, a, err)
				if err == nil {
					a.Release()
				}
			}()
		} else if err := c.Start(context.Background(), out, completed(func(a *mux.Answer, err error) { told(i, a, err) })); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if i == 0 {
			peer.expectHello()
			peer.expect(wire.Method)
		}
		h, _ := peer.expect(wire.Request)
		ids = append(ids, h.ID)
	}
	feed(server, ids)
	synctest.Wait()
	if n := c.Tables(); n.Open != 0 || n.Taken != 0 {
		t.Errorf("calls are left: %+v", n)
	}
	c.Close()
	close(ended)
	var all []string
	for outcome := range ended {
		all = append(all, outcome)
	}
	slices.Sort(all)
	return fmt.Sprintf("%q", all)
}

func TestAClientReadsFramesHoweverTheyAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var size int
		want := outcomes(t, func(w io.Writer, ids []uint32) {
			all := slices.Concat(replies(ids)...)
			size = len(all)
			_, _ = w.Write(all)
		})
		for _, part := range []string{`body \"second\"`, `body \"third\"`, `code 5`, `body \"fifth\"`, `body \"first\"`} {
			if !bytes.Contains([]byte(want), []byte(part)) {
				t.Fatalf("the outcomes lack %s: %s", part, want)
			}
		}
		for i := 1; i < size; i++ {
			got := outcomes(t, func(w io.Writer, ids []uint32) {
				all := slices.Concat(replies(ids)...)
				_, _ = w.Write(all[:i])
				synctest.Wait()
				_, _ = w.Write(all[i:])
			})
			if got != want {
				t.Fatalf("cut at %d:\n got %s\nwant %s", i, got, want)
			}
		}
		got := outcomes(t, func(w io.Writer, ids []uint32) {
			for _, b := range slices.Concat(replies(ids)...) {
				_, _ = w.Write([]byte{b})
				synctest.Wait()
			}
		})
		if got != want {
			t.Fatalf("byte by byte:\n got %s\nwant %s", got, want)
		}
	})
}

// What the sniffer of a port has read already is part of the stream.
func TestAPrefixIsReadFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := slices.Concat(hello(nil), method(0, "echo"), request(0, callID(0, 1), "prefix"))
		for _, n := range []int{0, 1, 8, 20, len(all)} {
			s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
			client, server := memoryPair(0)
			srv := mux.New(server, all[:n], false, s.config(t, s.server, s.serves))
			peer := newRawPeer(t, client)
			peer.write(all[n:])
			peer.expectHello()
			peer.expect(wire.MethodInfo)
			if _, _, body := peer.expectReply(callID(0, 1)); body != "prefix" {
				t.Errorf("%d bytes of prefix: got reply %q", n, body)
			}
			srv.Close()
		}
	})
}
