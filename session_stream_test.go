// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// serveTalks is the Serve of a protocol with streams. Every message in it is a line: "!Method", the
// request of a unary method or a feed, "+" and a message of a stream, "." at the end of one. The
// outcome of a call is "=" and the reply, or "error" and the error.
func serveTalks(_ context.Context, s *yodel.Session) error {
	lines := &talk{s: s}
	for {
		first, err := lines.next()
		if err != nil {
			return err
		}
		v := s.Begin(strings.TrimPrefix(first, "!"), yodel.JSON, nil)
		if err = lines.serve(v); err != nil { //nolint:contextcheck,nolintlint // the context is that of the call
			return err
		}
	}
}

// A talk is the messages of the stream that a session has at the time.
type talk struct {
	s    *yodel.Session
	over bool // the client has ended its direction
}

// serve carries out one call.
func (l *talk) serve(v *yodel.Served) error {
	defer v.End()
	v.Call().Explain = v.Call().Method == "Negate"
	if e := v.Admit(l.s.Limits().MaxMessage, true); e != nil {
		return e
	}
	var err error
	kind := v.Kind()
	if l.over = kind != "upload" && kind != "duplex"; l.over {
		var body string
		if body, err = l.next(); err != nil {
			return err
		}
		v.Body = []byte(body)
	}
	if kind != "unary" {
		v.Stream = l
	}
	e := v.Run()
	for !l.over && err == nil { // the handler has not received all
		_, _, err = l.Receive(context.Background())
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var reply []byte
	if e == nil && (kind == "unary" || kind == "upload") {
		reply, _, e = v.AppendReply(nil)
	}
	if e != nil {
		_, err = fmt.Fprintf(l.s, "error %v\n", e)
		return err
	}
	_, err = fmt.Fprintf(l.s, "=%s\n", reply)
	return err
}

// next reads a line. The client may pause before it.
func (l *talk) next() (string, error) {
	if err := l.s.Next(); err != nil {
		return "", err
	}
	line, err := l.s.Reader.ReadSlice('\n')
	return strings.TrimSpace(string(line)), err
}

func (l *talk) Send(_ context.Context, body []byte, _ bool) error {
	_, err := fmt.Fprintf(l.s, "+%s\n", body)
	return err
}

func (l *talk) Receive(context.Context) ([]byte, bool, error) {
	if l.over {
		return nil, false, io.EOF
	}
	line, err := l.next()
	if errors.Is(err, io.EOF) { // the client has left, and did not end its stream
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, false, err
	}
	if l.over = line == "."; l.over {
		return nil, false, io.EOF
	}
	return []byte(strings.TrimPrefix(line, "+")), false, nil
}

func (l *talk) End() { _, _ = io.WriteString(l.s, ".\n") } // the outcome of the call fails too

var (
	talkCount  yodel.Feed[int, int]   = "Count"
	talkSum    yodel.Upload[int, int] = "Sum"
	talkNegate yodel.Duplex[int, int] = "Negate"
)

func handleStreams(s *yodel.Server) {
	talkCount.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(new(i + 1)); err != nil {
				return err
			}
		}
		return nil
	})
	talkSum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		sum := 0
		for n, err := range recv {
			if err != nil {
				return nil, err
			}
			if sum += *n; *n == 0 {
				return nil, yodel.Errorf(yodel.InvalidArgument, "a zero")
			}
		}
		return &sum, nil
	})
	talkNegate.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if err = send(new(-*n)); err != nil {
				return err
			}
		}
		if err := send.End(); err != nil {
			return err
		}
		return send(new(1)) // after the end
	})
}

// A protocol with streams carries the methods that have them, and unary ones.
func TestSessionsCarryStreams(t *testing.T) {
	s := serveLines(t, lines{serve: serveTalks}, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1000}})
	handle(t, s.Server, "Double", double)
	handleStreams(s.Server)
	c := s.dial(t)
	reader := bufio.NewReader(c)
	for _, test := range []struct{ send, want string }{
		{"!Double\n4\n", "=8"},
		{"!Count\n3\n", "+1 +2 +3 ="},
		{"!Count\nx\n", "error invalid_argument: Count: the request does not fit int"},
		{"!Sum\n+1\n+2\n+39\n.\n", "=42"},
		{"!Sum\n.\n", "=0"},
		{"!Sum\n+0\n+2\n.\n", "error invalid_argument: a zero"},
		{"!Sum\n+x\n.\n", "[YDL2101]"},
		{"!Sum\n+" + strings.Repeat("1", 2000) + "\n.\n", "[YDL2202]"},
		{"!Negate\n+1\n+2\n.\n", "+-1 +-2 . error"},
		{"!Nothing\n1\n", "[YDL2002]"},
		{"!Double\n5\n", "=10"},
	} {
		if _, err := io.WriteString(c, test.send); err != nil {
			t.Fatal(err)
		}
		if got := outcome(t, reader); !strings.Contains(got, test.want) {
			t.Errorf("%.40q: got %s, want %s", test.send, got, test.want)
		}
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	records := s.Samples(&introspect.SamplesQuery{Explained: true}).Calls
	if len(records) != 1 {
		t.Fatalf("got the records %+v, want that of the duplex call", records)
	}
	if r := records[0]; r.Method != "Negate" || r.Kind != "duplex" || r.Sent != 2 || r.Received != 2 || r.BytesOut != 4 || r.BytesIn != 2 {
		t.Errorf("the record of the duplex call is %+v", r)
	}
}

// outcome reads to the end of a call.
func outcome(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var got []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(line))
		if line[0] == '=' || strings.HasPrefix(line, "error") {
			return strings.Join(got, " ")
		}
	}
}

// A stream ends with its client.
func TestAStreamOfASessionEndsWithItsClient(t *testing.T) {
	s := serveLines(t, lines{serve: serveTalks}, yodel.ServerOptions{})
	ended := make(chan error, 1)
	talkSum.Handle(s.Server, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		for _, err := range recv {
			if err != nil {
				ended <- err
				return nil, err
			}
		}
		return nil, errors.New("the stream ended")
	})
	c := s.dial(t)
	if _, err := io.WriteString(c, "!Sum\n+1\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; yodel.CodeOf(err) != yodel.Unavailable {
		t.Errorf("got %v", err)
	}
}

// A method with a stream cannot be called by a protocol that has none.
func TestSessionsWithoutStreams(t *testing.T) {
	s := serveLines(t, lines{}, yodel.ServerOptions{})
	handleStreams(s.Server)
	if got := ask(t, s.dial(t), "Count", "3"); !strings.Contains(got, "[YDL2006]") {
		t.Errorf("got %s", got)
	}
}
