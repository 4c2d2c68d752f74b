// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// streamMethod is a method of a kind that has a stream.
func streamMethod(name string, kind uint64) *mux.Method {
	return &mux.Method{Handle: 1, Name: name, Codec: "raw", Kind: kind}
}

// echoStream sends each message back.
func echoStream(r *mux.Request) {
	st := r.Stream()
	st.Accept()
	for {
		msg, flags, err := st.Receive(r)
		if errors.Is(err, io.EOF) {
			r.Reply = mux.Outcome{Body: []byte("end")}
			return
		}
		if err == nil {
			err = st.Send(r, flags, msg)
		}
		if err != nil {
			r.Reply = mux.Outcome{Code: codeInternal, Fields: &wire.Fields{Message: []byte(err.Error())}}
			return
		}
	}
}

func open(t *testing.T, c *mux.Conn, method *mux.Method, body []byte) *mux.Stream {
	t.Helper()
	st := mux.NewStream()
	if err := c.Start(t.Context(), &mux.Out{Method: method, Body: body, Stream: st}, st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestAStreamCarriesMessagesBothWays(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {serve: echoStream}}}
	c, srv := s.overTCP(t)
	st := open(t, c, streamMethod("echo", wire.Duplex), nil)
	if err := st.Accepted(t.Context()); err != nil {
		t.Fatal(err)
	}
	sizes := []int{0, 1, 100, 40_000, 65_000, 70_000, 1 << 20, 5 << 20}
	go func() {
		for round := range 3 {
			for i, n := range sizes {
				if err := st.Send(context.Background(), 0, bytes.Repeat([]byte{byte(round*len(sizes) + i)}, n)); err != nil {
					t.Errorf("send %d: %v", n, err)
				}
			}
		}
		st.End()
	}()
	for round := range 3 {
		for i, n := range sizes {
			msg, _, err := st.Receive(t.Context())
			if err != nil {
				t.Fatal(round, n, err)
			}
			if !bytes.Equal(msg, bytes.Repeat([]byte{byte(round*len(sizes) + i)}, n)) {
				t.Fatalf("got %d bytes, want %d", len(msg), n)
			}
		}
	}
	if _, _, err := st.Receive(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
	a, err := st.Wait()
	if err != nil || a.Code != 0 || string(a.Body) != "end" {
		t.Errorf("got %v, %v", a, err)
	}
	wantEmpty(t, "client", c)
	wantEmpty(t, "server", srv)
}
