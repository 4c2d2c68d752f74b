// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/await"
)

// A holder is a proxy for one connection of HTTP/2. It holds back each GOAWAY of the server, and
// what the server sends after it.
type holder struct {
	addr    string
	headers chan struct{} // gets an element for each HEADERS frame of the client
	goAway  chan struct{} // closed when the server has sent GOAWAY with its last stream
	release chan struct{} // closed by the test
}

// hold starts a holder in front of a server.
func hold(t *testing.T, server string) *holder {
	t.Helper()
	l := listen(t)
	h := &holder{addr: l.Addr().String(), headers: make(chan struct{}, 100), goAway: make(chan struct{}), release: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- h.serve(l, server) }()
	t.Cleanup(func() {
		_ = l.Close() // it is closed if it has accepted the connection
		if err := await.Value(t, ended, "the end of the proxy"); err != nil {
			t.Error(err)
		}
	})
	return h
}

// serve relays one connection until it ends.
func (h *holder) serve(l net.Listener, server string) error {
	client, err := l.Accept()
	if err != nil {
		return err
	}
	_ = l.Close() // later connections of the client are refused
	up, err := net.Dial("tcp", server)
	if err != nil {
		return err
	}
	var both sync.WaitGroup
	both.Go(func() {
		defer up.Close()
		if _, err := io.CopyN(up, client, int64(len(http2.ClientPreface))); err == nil {
			relayFrames(up, client, func(kind http2.FrameType, _ []byte) (more bool) {
				if kind == http2.FrameHeaders {
					h.headers <- struct{}{}
				}
				return false
			})
		}
	})
	both.Go(func() {
		defer client.Close()
		leaving := false
		relayFrames(client, up, func(kind http2.FrameType, payload []byte) (more bool) {
			if kind == http2.FrameGoAway && !leaving {
				if binary.BigEndian.Uint32(payload) == math.MaxInt32 {
					return true // the server still takes requests, until it names the last one
				}
				leaving = true
				close(h.goAway)
				<-h.release
			}
			return false
		})
	})
	both.Wait()
	return nil
}

// relayFrames writes the frames of a peer to the other one. It calls on before each of them. If on
// returns true, the frame and those behind it are written with the next GOAWAY.
func relayFrames(to io.Writer, from io.Reader, on func(kind http2.FrameType, payload []byte) (more bool)) {
	var frames []byte
	holding := false
	for {
		var head [9]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16+int(head[1])<<8+int(head[2]))
		if _, err := io.ReadFull(from, payload); err != nil {
			return
		}
		frames = append(append(frames, head[:]...), payload...)
		if kind := http2.FrameType(head[3]); on(kind, payload) || holding && kind != http2.FrameGoAway {
			holding = true
			continue
		}
		holding = false
		if _, err := to.Write(frames); err != nil {
			return
		}
		frames = frames[:0]
	}
}

// executions says which of two servers has executed the call with an ID, and how often.
type executions struct {
	mu   sync.Mutex
	made map[string]int
}

// on returns what a server calls to execute a call.
func (e *executions) on(server string) func(id int64) string {
	return func(id int64) string {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.made[fmt.Sprint(server, " ", id)]++
		return fmt.Sprint("answer ", id)
	}
}

// of returns how often a server has executed the call with an ID.
func (e *executions) of(server string, id int64) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.made[fmt.Sprint(server, " ", id)]
}

// A client of grpc-go has an upload and a duplex that run when a server begins to drain. They go on
// to their ends. Calls of all kinds that the client begins then, before it has GOAWAY, are not
// processed: grpc-go makes them elsewhere by itself.
func TestStreamsAroundAGoAway(t *testing.T) {
	t.Attr("rerun", "never")
	calls := &executions{made: make(map[string]int)}
	old, err := serveRolling(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)}, calls.on("old"))
	must(t, err)
	other, err := serveRolling(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)}, calls.on("other"))
	must(t, err)
	l := listen(t)
	serving, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- old.Serve(serving, l) }()
	h := hold(t, l.Addr().String())
	c := rollingClient(t, "pick_first", h.addr, start(t, other))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	const upload, duplex = 1, 2
	running := make(map[int64]grpc.ClientStream)
	for id, desc := range map[int64]*grpc.StreamDesc{upload: uploadDesc, duplex: duplexDesc} {
		method := map[int64]string{upload: "/rolling.Work/Upload", duplex: "/rolling.Work/Duplex"}[id]
		s, err := c.NewStream(metadata.AppendToOutgoingContext(ctx, "rolling-id", fmt.Sprint(id)), desc, method)
		must(t, err)
		must(t, s.SendMsg(wrapperspb.Int64(id)))
		await.Value(t, h.headers, "the headers of a stream")
		running[id] = s
	}
	for end := time.Now().Add(await.Patience); calls.of("old", upload)+calls.of("old", duplex) < 2; {
		if time.Now().After(end) {
			t.Fatal("the server has not begun the streams")
		}
		<-time.After(time.Millisecond)
	}
	stop()
	await.Value(t, h.goAway, "GOAWAY")

	const first, kinds = 10, 6 // of the new calls
	var late sync.WaitGroup
	for i := range kinds {
		late.Go(func() {
			if answer, err := dialRolling(c, i)(ctx, int64(first+i)); err != nil || answer != fmt.Sprint("answer ", first+i) {
				t.Errorf("the late call %d: got %q, %v", i, answer, err)
			}
		})
		await.Value(t, h.headers, "the headers of a late call")
	}
	close(h.release)
	late.Wait()

	// The upload has sent one of three messages, and the duplex has not read its first answer.
	must(t, running[upload].SendMsg(wrapperspb.Int64(upload)))
	answer, err := finish(running[upload], uploadDesc, upload, 1)
	if err != nil || answer != "answer 1" {
		t.Errorf("the upload: got %q, %v", answer, err)
	}
	must(t, running[duplex].RecvMsg(new(wrapperspb.StringValue)))
	if answer, err = finish(running[duplex], duplexDesc, duplex, rollingMessages-1); err != nil || answer != "answer 2" {
		t.Errorf("the duplex: got %q, %v", answer, err)
	}
	must(t, await.Value(t, stopped, "the end of the server"))
	want := map[string]int{"old 1": 1, "old 2": 1}
	for i := range kinds {
		want[fmt.Sprint("other ", first+i)] = 1
	}
	if !maps.Equal(calls.made, want) {
		t.Errorf("the calls were executed %v times, want %v", calls.made, want)
	}
}
