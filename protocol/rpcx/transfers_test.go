// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A store is a server that transfers files.
type store struct {
	*served
	began  chan struct{} // an upload has begun
	stored chan string   // what was uploaded, or the error
}

func serveStore(t *testing.T, o TransferOptions, limits yodel.Limits) *store {
	t.Helper()
	s := &store{began: make(chan struct{}, 100), stored: make(chan string, 100)}
	o.Upload = func(_ context.Context, file *File, from io.Reader) error {
		s.began <- struct{}{}
		b, err := io.ReadAll(from)
		if err != nil {
			s.stored <- err.Error()
			return err
		}
		if file.FileName == "panic" {
			panic("oh")
		}
		s.stored <- fmt.Sprint(file.FileName, file.Meta["k"], len(b))
		return nil
	}
	o.Download = func(_ context.Context, file *File, to io.Writer) error {
		_, err := io.Copy(to, strings.NewReader(file.FileName+file.Meta["k"]))
		if file.FileName == "half" {
			return errors.New("the disk fails")
		}
		return err
	}
	o.Stream = func(_ context.Context, meta map[string]string, conn net.Conn) error {
		_, err := io.Copy(conn, io.MultiReader(strings.NewReader(meta["k"]), conn))
		return err
	}
	transfers := NewTransfers(&o)
	s.served = serve(t, yodel.ServerOptions{Protocols: []yodel.Protocol{Protocol, transfers}, Limits: limits})
	if err := transfers.Register(s.Server); err != nil {
		t.Fatal(err)
	}
	return s
}

// Clients of rpcx and of yodel transfer files and use streams.
func TestTransfers(t *testing.T) {
	s := serveStore(t, TransferOptions{}, yodel.Limits{})
	overRPCX := calling(t, yodel.ClientOptions{}, s.addr)
	native := yodel.NewClient(discovery.Static(s.addr), nil)
	defer native.Close()
	for name, c := range map[string]yodel.Caller{"rpcx": overRPCX, "yodel": native} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			meta := map[string]string{"k": "v"}
			for _, size := range []int{0, 1, 1 << 20} {
				if err := SendFile(ctx, c, &File{"a", int64(size), meta}, bytes.NewReader(make([]byte, size))); err != nil {
					t.Error(err)
				}
				if got, want := <-s.stored, fmt.Sprint("av", size); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			var got strings.Builder
			if err := DownloadFile(ctx, c, &File{FileName: "name", Meta: meta}, &got); err != nil || got.String() != "namev" {
				t.Errorf("got %q, %v", got.String(), err)
			}
			if err := DownloadFile(ctx, c, &File{FileName: "half"}, &got); !errors.Is(err, yodel.Unavailable) {
				t.Errorf("a download that fails: got %v", err)
			}
			if err := SendFile(ctx, c, &File{FileName: "panic"}, strings.NewReader("")); !errors.Is(err, yodel.Unavailable) {
				t.Errorf("an upload that panics: got %v", err)
			}
			for _, content := range []string{"123", "12345"} {
				if err := SendFile(ctx, c, &File{FileName: "a", FileSize: 4}, strings.NewReader(content)); !errors.Is(err, yodel.Unavailable) {
					t.Errorf("a file with another size: got %v", err)
				}
				<-s.stored
			}
			conn, err := OpenStream(ctx, c, meta)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			b := make([]byte, 6)
			if _, err = conn.Write([]byte("hello")); err == nil {
				_, err = io.ReadFull(conn, b)
			}
			if err != nil || string(b) != "vhello" {
				t.Errorf("got %q, %v", b, err)
			}
		})
	}
}

// Calls that would exceed a limit fail.
func TestTransferLimits(t *testing.T) {
	s := serveStore(t, TransferOptions{MaxSize: 10, MaxTokens: 2}, yodel.Limits{})
	c := calling(t, yodel.ClientOptions{}, s.addr)
	for name, file := range map[string]*File{
		"a negative size": {FileSize: -1}, "too large a file": {FileSize: 11}, "too long a name": {FileName: strings.Repeat("x", maxDescription+1)},
		"too much meta": {Meta: map[string]string{"k": strings.Repeat("x", maxDescription)}},
	} {
		err := c.Call(t.Context(), methodUpload, file, new(tokenReply))
		if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.ResourceExhausted {
			t.Errorf("%s: got %v", name, err)
		}
	}
	replies := make([]tokenReply, 3)
	for i := range replies {
		err := c.Call(t.Context(), methodUpload, &File{}, &replies[i])
		if e, ok := errors.AsType[*yodel.Error](err); i < 2 && err != nil || i == 2 && (!ok || e.Code != yodel.ResourceExhausted) {
			t.Errorf("call %d: got %v", i, err)
		}
	}
	if replies[0].Addr != s.addr || len(replies[0].Token) != 32 || replies[0].Token[0] != firstByte || bytes.Equal(replies[0].Token, replies[1].Token) {
		t.Errorf("got %+v", replies)
	}
	dial(t, s.addr).useToken(replies[0].Token, 0)
	if got := <-s.stored; got != "0" {
		t.Errorf("got %q", got)
	}
	dial(t, s.addr).useToken(replies[0].Token, 0) // a token works once
	replies[1].Token[31]++
	dial(t, s.addr).useToken(replies[1].Token, 0)
	dial(t, s.addr).useToken(replies[1].Token[:31], 0)
	replies[1].Token[31]--
	dial(t, s.addr).useToken(replies[1].Token, 1) // more than announced
	if got := <-s.stored; !strings.Contains(got, "more bytes") {
		t.Errorf("got %q", got)
	}
	if len(s.stored) != 0 {
		t.Errorf("%d more uploads", len(s.stored))
	}
}

// useToken sends a token and n bytes, and waits for the end of the connection.
func (c *rawClient) useToken(token []byte, n int) {
	c.Helper()
	if _, err := c.Write(append(bytes.Clone(token), make([]byte, n)...)); err != nil {
		c.Fatal(err)
	}
	_ = c.Conn.(*net.TCPConn).CloseWrite() // the server may have closed the connection
	c.ends()
}

// An upload must arrive in time.
func TestSlowUpload(t *testing.T) {
	s := serveStore(t, TransferOptions{}, yodel.Limits{KeepAlive: 50 * time.Millisecond})
	reply := new(tokenReply)
	if err := calling(t, yodel.ClientOptions{}, s.addr).Call(t.Context(), methodUpload, &File{FileSize: 100}, reply); err != nil {
		t.Fatal(err)
	}
	c := dial(t, s.addr)
	if _, err := c.Write(append(bytes.Clone(reply.Token), "half"...)); err != nil {
		t.Fatal(err)
	}
	if got := <-s.stored; !strings.Contains(got, "timeout") {
		t.Errorf("got %q", got)
	}
	c.ends()
}

// A token has no use after its life.
func TestTokensExpire(t *testing.T) {
	s := serveStore(t, TransferOptions{TokenLife: time.Nanosecond, MaxTokens: 1}, yodel.Limits{})
	c := calling(t, yodel.ClientOptions{}, s.addr)
	for range 3 { // an expired token takes no place
		reply := new(tokenReply)
		if err := c.Call(t.Context(), methodUpload, &File{}, reply); err != nil {
			t.Fatal(err)
		}
		dial(t, s.addr).useToken(reply.Token, 0)
	}
	if len(s.stored) != 0 {
		t.Error("an expired token was used")
	}
}

// A shutdown waits for a transfer.
func TestTransferDrains(t *testing.T) {
	s := serveStore(t, TransferOptions{}, yodel.Limits{})
	c := calling(t, yodel.ClientOptions{}, s.addr)
	conn, err := OpenStream(t.Context(), c, map[string]string{"k": "v"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := make([]byte, 1)
	if _, err = io.ReadFull(conn, b); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	for range 100 {
		if _, err = conn.Write(b); err == nil {
			_, err = io.ReadFull(conn, b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err = conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err = <-stopped; err != nil {
		t.Error(err)
	}
}

// The address of a transfer must be known, and a client that gives up ends its transfer.
func TestTransferErrors(t *testing.T) {
	s := serveStore(t, TransferOptions{}, yodel.Limits{})
	if err := SendFile(t.Context(), s.Server, &File{}, strings.NewReader("")); !errors.Is(err, yodel.FailedPrecondition) {
		t.Errorf("a call in the process: got %v", err)
	}
	c := calling(t, yodel.ClientOptions{}, s.addr)
	ctx, cancel := context.WithCancel(t.Context())
	from, to := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- SendFile(ctx, c, &File{FileName: "a", FileSize: 100}, from) }()
	if _, err := to.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	<-s.began
	cancel()
	_ = to.Close() // SendFile may be reading
	if err := <-ended; !errors.Is(err, yodel.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := <-s.stored; !strings.Contains(got, "reset") {
		t.Errorf("the server got %q", got)
	}
}

// Match never takes a connection of another protocol.
func FuzzMatchToken(f *testing.F) {
	t := NewTransfers(&TransferOptions{})
	known := token{firstByte, 1, 2, 3}
	t.tokens[known] = waiting{}
	f.Add(known[:])
	f.Add([]byte{firstByte})
	f.Add([]byte{magic, 0, 0})
	f.Fuzz(func(tt *testing.T, b []byte) {
		ok, more := t.Match(b)
		if want := bytes.HasPrefix(b, known[:]); ok != want || more != (len(b) == 0 || b[0] == firstByte && len(b) < 32) {
			tt.Errorf("got %v, %v", ok, more)
		}
	})
}
