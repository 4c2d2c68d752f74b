// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	std "net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// envelope returns a message of a stream.
func envelope(flags byte, message string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message))), message...)
}

// open reads the messages of a stream.
func readEnvelope(from io.Reader) (flags byte, message string, err error) {
	var prefix [5]byte
	if _, err = io.ReadFull(from, prefix[:]); err != nil {
		return 0, "", err
	}
	b := make([]byte, binary.BigEndian.Uint32(prefix[1:]))
	_, err = io.ReadFull(from, b)
	return prefix[0], string(b), err
}

// A streamed is the response to a call by Connect with streams.
type streamed struct {
	*std.Response
	messages []string
	last     string // the last message
}

var connectJSON = []string{"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1", "Connect-Content-Encoding", "gzip", "Connect-Accept-Encoding", "identity"}

// connect calls a method by Connect with messages that have some flags.
func (s *site) connect(c *std.Client, path string, flags byte, messages ...string) (r streamed) {
	s.t.Helper()
	var body bytes.Buffer
	for _, m := range messages {
		body.Write(envelope(flags, m))
	}
	r.Response = s.open(c, "POST", path, &body, connectJSON...)
	defer r.Body.Close()
	for {
		flags, message, err := readEnvelope(r.Body)
		if err != nil {
			s.t.Errorf("the stream ends without a last message: %v", err)
			return r
		}
		if flags&2 != 0 {
			r.last = message
			return r
		}
		r.messages = append(r.messages, message)
	}
}

func TestConnectStreams(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		for _, test := range []struct {
			path     string
			requests []string
			want     string
		}{
			{"/Test/Echo", []string{`{"text":"a"}`}, `[{"text":"a"}] {}`},
			{"/Test/Watch", []string{`{"text":"a b"}`}, `[{"text":"a"} {"text":"b"}] {"metadata":{"Last":["trailer"]}}`},
			{"/Test/Watch", []string{`{"text":"a fail"}`}, `[{"text":"a"}] {"error":{"code":"aborted","message":"in the middle"},"metadata":{"Last":["trailer"]}}`},
			{"/Test/Gather", []string{`{"text":"a"}`, `{"text":"b"}`}, `[{"text":"a b"}] {}`},
			{"/Test/Gather", nil, `[{"text":""}] {}`},
			{"/Test/Chat", []string{`{"text":"a"}`, `{"text":"b"}`}, `[{"text":"a"} {"text":"b"}] {}`},
		} {
			r := s.connect(c, test.path, 0, test.requests...)
			if got := fmt.Sprint(r.messages, " ", r.last); got != test.want {
				t.Errorf("%s: got %s, want %s", test.path, got, test.want)
			}
		}
		for _, test := range []struct {
			path     string
			flags    byte
			requests []string
			code     string
		}{
			{"/Test/Echo", 0, nil, "unimplemented"},
			{"/Test/Echo", 0, []string{"{}", "{}"}, "unimplemented"},
			{"/Test/Echo", 4, []string{"{}"}, "internal"},
			{"/Test/Gather", 4, []string{"{}"}, "internal"},
			{"/Test/Nothing", 0, []string{"{}"}, "unimplemented"},
		} {
			if r := s.connect(c, test.path, test.flags, test.requests...); !strings.Contains(r.last, test.code) {
				t.Errorf("%s with %d messages: got %s, want %s", test.path, len(test.requests), r.last, test.code)
			}
		}
	})
}

// A duplex is a call by Connect whose client sends while it reads.
type duplex struct {
	t    testing.TB
	in   io.ReadCloser
	out  *io.PipeWriter
	done context.CancelFunc
}

func (s *site) duplex(c *std.Client, path string) *duplex {
	s.t.Helper()
	body, out := io.Pipe()
	ctx, cancel := context.WithCancel(s.t.Context())
	d := &duplex{t: s.t, out: out, done: cancel}
	opened := make(chan error, 1)
	go func() { // net/http waits for the header, which comes with the first message
		response, err := s.try(ctx, c, "POST", path, body, connectJSON...) //nolint:bodyclose // close does it
		if err == nil {
			d.in = response.Body
		}
		opened <- err
	}()
	d.send("first")
	must(s.t, receive(s.t, opened))
	s.t.Cleanup(func() { _ = d.in.Close() })
	d.expect("first")
	return d
}

func (d *duplex) send(word string) {
	d.t.Helper()
	_, err := d.out.Write(envelope(0, `{"text":"`+word+`"}`))
	must(d.t, err)
}

func (d *duplex) expect(word string) {
	d.t.Helper()
	if _, message, err := readEnvelope(d.in); err != nil || message != `{"text":"`+word+`"}` {
		d.t.Fatalf("got %s, %v, want %s", message, err, word)
	}
}

// Several hundred streams of one connection go on side by side.
func TestManyStreams(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, true)
	s.post(c, "/Test/Echo", "{}").is(t, 200, `{"text":""}`) // so that all streams share its connection
	const n = 400
	streams := make([]*duplex, n)
	for i := range streams {
		streams[i] = s.duplex(c, "/Test/Chat")
	}
	if got := s.Stats().Conns; got != 1 {
		t.Errorf("there are %d connections", got)
	}
	for round := range 3 {
		var group sync.WaitGroup
		for i, d := range streams {
			group.Go(func() {
				word := fmt.Sprint("word ", i, " ", round)
				if _, err := d.out.Write(envelope(0, `{"text":"`+word+`"}`)); err != nil {
					t.Error(err)
				}
				if _, got, err := readEnvelope(d.in); err != nil || got != `{"text":"`+word+`"}` {
					t.Errorf("stream %d: got %s, %v", i, got, err)
				}
			})
		}
		group.Wait()
	}
	for _, d := range streams {
		must(t, d.out.Close())
		if flags, last, err := readEnvelope(d.in); err != nil || flags != 2 || last != "{}" {
			t.Fatalf("got %d %s %v", flags, last, err)
		}
		d.done()
	}
}

// The handler learns that the client cancels, and the client gets the handler's error while it
// still sends.
func TestStreamsEndFromEitherSide(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, true)
	d := s.duplex(c, "/Test/Chat")
	d.done()
	_ = d.in.Close() // net/http does not watch the context while it sends the request
	if err := receive(t, s.ended); yodel.CodeOf(err) != yodel.Canceled {
		t.Errorf("the handler got %v", err)
	}
	refuse := yodel.Duplex[text, text]("Test.Refuse")
	refuse.Handle(s.Server, func(_ context.Context, recv yodel.Recv[text], send yodel.Send[text]) error {
		in, err := recv.Next()
		if err != nil {
			return err
		}
		if err := send(in); err != nil {
			return err
		}
		return yodel.Errorf(yodel.PermissionDenied, "no more")
	})
	d = s.duplex(c, "/Test/Refuse")
	if flags, last, err := readEnvelope(d.in); err != nil || flags != 2 || !strings.Contains(last, `"permission_denied"`) {
		t.Errorf("got %d %s %v", flags, last, err)
	}
	_ = d.out.Close() // the request has ended
}

// A client that does not read its stream makes the handler wait, and loses the stream.
func TestUnreadStream(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		body := envelope(0, jsonOf(10_000))
		headers := append([]string{"Connect-Timeout-Ms", "300"}, connectJSON...)
		response, err := s.try(ctx, c, "POST", "/Test/Endless", bytes.NewReader(body), headers...)
		must(t, err)
		defer response.Body.Close()
		if err := receive(t, s.ended); yodel.CodeOf(err) != yodel.DeadlineExceeded {
			t.Errorf("the handler got %v", err)
		}
	})
}

// A stream whose message does not come to its end loses its connection or stream.
func TestSlowMessage(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 50 * time.Millisecond}}), client(t, h2)
		body, out := io.Pipe()
		go func() { _, _ = out.Write(envelope(0, jsonOf(20_000))[:10_000]) }() // until the client ends it
		response, err := s.try(t.Context(), c, "POST", "/Test/Gather", body, connectJSON...)
		if err == nil {
			if _, last, err := readEnvelope(response.Body); err == nil && !strings.Contains(last, "error") {
				t.Errorf("the stream ended with %s", last)
			}
			_ = response.Body.Close() // the server may have reset the stream
		}
		_ = out.Close() // as above
		s.post(c, "/Test/Echo", "{}").is(t, 200, `{"text":""}`)
	})
}

// gRPC-Web writes its trailer as text. Whatever an error has, no line is added to it.
func TestTrailerIsOneLineForEachKey(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, false)
	must(t, s.HandleCall("Test.Odd", func(context.Context, *yodel.Call) error {
		return &yodel.Error{Code: yodel.Aborted, ID: "a\r\nx: y", Message: "m\r\nx: y ü"}
	}))
	r := s.do(c, "POST", "/Test/Odd", string(envelope(0, "{}")), "Content-Type", "application/grpc-web+json")
	flags, text, err := readEnvelope(strings.NewReader(r.body))
	must(t, err)
	lines := strings.Split(strings.TrimSuffix(text, "\r\n"), "\r\n")
	slices.Sort(lines)
	want := []string{"grpc-message: m%0D%0Ax: y %C3%BC", "grpc-status: 10", "yodel-error-id: a__x:_y"}
	if flags != 0x80 || !slices.Equal(lines, want) {
		t.Errorf("got %#x %q, want %q", flags, lines, want)
	}
}
