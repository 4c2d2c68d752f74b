// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// The conversations in spec/vectors are what an implementation in another language can be held
// against.

type conversationStep struct {
	Client, Server hexBytes
	Expect         []struct {
		Type  string
		Flags []string
		Arg   uint16
		ID    uint32
	}
	Close string
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

var typesByName = map[string]wire.Type{"Reply": wire.Reply, "GoAway": wire.GoAway, "Data": wire.Data}

var flagsByName = map[string]wire.Flags{
	"HasFields": wire.HasFields, "HasChecksum": wire.HasChecksum, "NotProcessed": wire.NotProcessed,
	"OfReply": wire.OfReply, "Waited": wire.Waited,
}

// conversationHandlers are the methods that the conversations are about.
func conversationHandlers() map[string]*handler {
	return map[string]*handler{
		"echo": {inline: true, serve: answerEcho},
		"feed": {serve: func(r *mux.Request) {
			var count, size int
			_, err := fmt.Sscan(string(r.Body), &count, &size)
			for ; err == nil && count > 0; count-- {
				err = r.Stream().Send(r, 0, filled('x', size))
			}
			endConversation(r, nil, err)
		}},
		"upload": {serve: func(r *mux.Request) {
			var all []byte
			err := eachMessage(r, func(msg []byte, _ wire.Flags) error {
				all = append(all, msg...)
				return nil
			})
			endConversation(r, all, err)
		}},
		"duplex": {serve: func(r *mux.Request) {
			err := eachMessage(r, func(msg []byte, flags wire.Flags) error { return r.Stream().Send(r, flags, msg) })
			endConversation(r, []byte("end"), err)
		}},
	}
}

func eachMessage(r *mux.Request, do func(msg []byte, flags wire.Flags) error) error {
	st := r.Stream()
	if st == nil { // a one-way request
		return nil
	}
	st.Accept()
	for {
		msg, flags, err := st.Receive(r)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = do(msg, flags)
		}
		if err != nil {
			return err
		}
	}
}

func endConversation(r *mux.Request, body []byte, err error) {
	switch {
	case err == nil:
		r.Reply.Body = body
	case r.Err() != nil:
		r.Reply.Code = codeCanceled
	default:
		r.Reply.Code = codeDataLoss
	}
}

func TestConversationsGoAsSpecified(t *testing.T) {
	text, err := os.ReadFile("../../spec/vectors/conversations.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Conversations []struct {
			Name  string
			Steps []conversationStep
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Conversations) < 30 {
		t.Fatalf("got %d conversations", len(file.Conversations))
	}
	limits := defaultLimits()
	limits.MaxMessage, limits.MaxOpenBytes = 16<<20, 64<<20
	for _, talk := range file.Conversations {
		t.Run(talk.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &setup{
					server: mux.Config{Limits: limits, Agent: "test"},
					serves: conversationHandlers(),
				}
				client, server := memoryPair(0)
				srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
				defer srv.Close()
				for i, step := range talk.Steps {
					if !converse(t, client, &step) {
						t.Fatalf("in step %d", i)
					}
				}
			})
		})
	}
}

// converse goes one step.
func converse(t *testing.T, client net.Conn, step *conversationStep) bool {
	if _, err := client.Write(step.Client); err != nil {
		t.Errorf("write: %v", err)
	}
	got := make([]byte, len(step.Server))
	if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, step.Server) {
		t.Errorf("%v\n got %x\nwant %x", err, got, []byte(step.Server))
	}
	for _, want := range step.Expect {
		h, _, err := readFrame(client)
		expected := wire.Header{Len: h.Len, Type: typesByName[want.Type], Arg: want.Arg, ID: want.ID}
		for _, name := range want.Flags {
			expected.Flags |= flagsByName[name]
		}
		if h != expected || err != nil {
			t.Errorf("got %+v, %v, want %+v", h, err, expected)
		}
	}
	switch step.Close {
	case "client":
		client.Close()
	case "server":
		if rest, err := io.ReadAll(client); len(rest) != 0 || err != nil {
			t.Errorf("got %x, %v, want the end of the stream", rest, err)
		}
	default:
		time.Sleep(time.Millisecond) // in fake time: nothing more comes
		if more := client.(*memoryConn).in.buffered(); more != 0 {
			t.Errorf("%d bytes more came", more)
		}
	}
	return !t.Failed()
}
