// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// The conversations in spec/vectors are what an implementation in another language can be held against.

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

var typesByName = map[string]wire.Type{"Reply": wire.Reply, "GoAway": wire.GoAway}

var flagsByName = map[string]wire.Flags{
	"HasFields": wire.HasFields, "HasChecksum": wire.HasChecksum, "NotProcessed": wire.NotProcessed,
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
					serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}},
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
