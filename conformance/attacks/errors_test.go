// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/middleware/accesslog"
)

// longID is an error id that a peer made up: longer than a line, and with a line of its own in it.
var longID = strings.Repeat("X", 400) + "\n2026 level=INFO forged \x1b[2J" + strings.Repeat("Y", 60_000)

// A liar is a server that answers each request with an error of that id, or greets with it.
func lie(t *testing.T, goAway bool) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			answerWithLies(c, goAway)
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func answerWithLies(c net.Conn, goAway bool) {
	out := wire.AppendSettings([]byte(wire.Preface), &wire.Limits{})
	if goAway {
		out = wire.AppendGoAway(out, 7, &wire.Drain{Message: []byte("go"), ErrorID: []byte(longID)})
	}
	if _, err := c.Write(out); err != nil {
		return
	}
	eachFrame(c, func(h wire.Header) {
		if h.Type == wire.Request {
			_, _ = c.Write(lyingReply(h.ID)) // the next read fails
		}
	})
}

// lyingReply is the reply with the long id.
func lyingReply(id uint32) []byte {
	b := wire.Begin(nil, &wire.Header{Type: wire.Reply, Flags: wire.HasFields, Arg: 5, ID: id})
	return wire.Finish(wire.AppendFields(b, &wire.Fields{Message: []byte("not here"), ErrorID: []byte(longID)}), 0)
}

// eachFrame calls f for the header of each frame that comes, until the connection ends.
func eachFrame(c net.Conn, f func(wire.Header)) {
	in := bufio.NewReader(c)
	if _, err := in.Discard(len(wire.Preface)); err != nil {
		return
	}
	for {
		var header [wire.HeaderSize]byte
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return
		}
		h := wire.ParseHeader(header[:])
		if _, err := in.Discard(int(h.Len)); err != nil {
			return
		}
		f(h)
	}
}

// beClient calls a server at an address, synchronously and not, and prints the length of what the
// errors say.
func beClient(addr string) {
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Codec: raw.Codec, Observers: []yodel.Observer{
		accesslog.To(slog.New(slog.NewTextHandler(os.Stdout, nil)), &accesslog.Options{ErrorText: true}),
	}})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_, err := attacks.Echo.Call(ctx, c, new([]byte))
	fmt.Printf("text %q\n", err.Error())
	_, err = attacks.Echo.Go(ctx, c, new([]byte)).Get()
	fmt.Printf("text %q\n", err.Error())
	c.Close()
	fmt.Println("done")
}

// TestALongErrorIDDoesNotEndAClient: a server must not end a client by what it says, nor write
// lines into the client's log.
func TestALongErrorIDDoesNotEndAClient(t *testing.T) {
	for name, goAway := range map[string]bool{"in replies": false, "in a notice": true} {
		t.Run(name, func(t *testing.T) {
			wantSoundErrors(t, attacks.StartRole(t, "client", lie(t, goAway)))
		})
	}
}

// wantSoundErrors reads what a process prints about errors, which must be short and one line each,
// and wants it to end well.
func wantSoundErrors(t *testing.T, p *attacks.Process) {
	t.Helper()
	for {
		line, err := p.Line()
		if err != nil {
			t.Fatal(err)
		}
		if line == "done" {
			break
		}
		if len(line) > 1200 || strings.ContainsFunc(line, unicode.IsControl) || strings.HasPrefix(line, "2026") {
			t.Errorf("a line of %d bytes: %.300q", len(line), line)
		}
	}
	if errors, err := p.Wait(5 * time.Second); err != nil {
		t.Errorf("the process ended with %v\n%s", err, errors)
	}
}

// beServerThatCalls serves, prints its address, calls each client that connects, and prints the
// length of what the error says.
func beServerThatCalls(string) {
	ended := make(chan struct{})
	s := yodel.NewServer(&yodel.ServerOptions{
		Observers: []yodel.Observer{accesslog.To(slog.New(slog.NewTextHandler(os.Stdout, nil)), &accesslog.Options{ErrorText: true})},
		Connect: func(_ context.Context, peer *yodel.Peer) error {
			go func() { //nolint:contextcheck // the calls outlive the hook
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				call := &yodel.Call{Method: "T.Echo", Codec: raw.Codec, Args: new([]byte), Reply: new([]byte)}
				err := peer.Do(ctx, call)
				fmt.Printf("text %q\n", err.Error())
				peer.Go(ctx, &yodel.Call{Method: "T.Echo", Codec: raw.Codec, Args: new([]byte), Reply: new([]byte)}, func(err error) {
					fmt.Printf("text %q\n", err.Error())
					close(ended)
				})
			}()
			return nil
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-ended
		cancel()
	}()
	if err := s.Serve(ctx, l); err != nil {
		panic(err)
	}
	fmt.Println("done")
}

// TestALongErrorIDDoesNotEndAServer: nor must a client end a server that calls it.
func TestALongErrorIDDoesNotEndAServer(t *testing.T) {
	p := attacks.StartRole(t, "server calling", "")
	addr, err := p.Line()
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if _, err := c.Write(wire.AppendSettings([]byte(wire.Preface), &wire.Limits{})); err != nil {
			return
		}
		eachFrame(c, func(h wire.Header) {
			if h.Type == wire.Request {
				_, _ = c.Write(lyingReply(h.ID))
			}
		})
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-answered
	})
	wantSoundErrors(t, p)
}
