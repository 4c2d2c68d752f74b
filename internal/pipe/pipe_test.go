// SPDX-License-Identifier: Apache-2.0

package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/jsoncodec"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/rawcodec"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A message is a body on its way.
type message struct {
	body  []byte
	flags wire.Flags
}

// A loop is a stream whose messages come back.
type loop struct {
	pipe.Stream // panics
	messages    []message
	room, held  int   // bytes of memory for decompressed messages
	fail        error // of Send and Receive
	ended       bool
}

func (l *loop) Send(_ context.Context, flags wire.Flags, body []byte) error {
	if l.fail == nil {
		l.messages = append(l.messages, message{bytes.Clone(body), flags})
	}
	return l.fail
}

func (l *loop) Receive(context.Context) ([]byte, wire.Flags, error) {
	switch {
	case l.fail != nil:
		return nil, 0, l.fail
	case len(l.messages) == 0:
		return nil, 0, io.EOF
	}
	m := l.messages[0]
	l.messages = l.messages[1:]
	return m.body, m.flags, nil
}

func (l *loop) End() { l.ended = true }

func (l *loop) Buffered() (n int) {
	for _, m := range l.messages {
		n += len(m.body)
	}
	return n
}

func (l *loop) Take(n int) bool {
	if l.held+n > l.room {
		return false
	}
	l.held += n
	return true
}

func (l *loop) Give(n int) { l.held -= n }

// twice is a compressor of texts that are a text and the same text again.
type twice struct{}

func (twice) Name() string { return "twice" }

func (twice) Append(dst, src []byte) ([]byte, error) {
	if string(src) == "broken" {
		return nil, errors.New("it is broken")
	}
	return append(dst, src[:len(src)/2]...), nil
}

func (twice) Decompress(dst, src []byte, limit int) ([]byte, error) {
	switch {
	case string(src) == "broken":
		return nil, errors.New("it is broken")
	case 2*len(src) > limit:
		return nil, unpack.ErrTooLarge
	}
	return append(append(dst, src...), src...), nil
}

type where string

func (w where) String() string { return string(w) }

// newPipe returns a pipe of a stream.
func newPipe(l *loop, codec pipe.Codec) *pipe.Pipe {
	_, raw := codec.(rawcodec.Codec[[]byte])
	return &pipe.Pipe{
		Stream: l, Context: context.Background(), Method: "A.B", Where: where("there"), Torn: "torn", Unfit: "unfit", Codec: codec, Raw: raw,
		Pack: &unpack.Packer{Limits: unpack.Limits{Most: 1 << 20}, Gate: new(unpack.Gate)}, MaxMessage: 100_000,
		Fail: func(err error) error { return err },
	}
}

// newRaw returns a pipe whose messages are bytes.
func newRaw(l *loop) *pipe.Pipe { return newPipe(l, rawcodec.Codec[[]byte]{}) }

// compressing returns p, which compresses messages of 8 bytes and more.
func compressing(p *pipe.Pipe) *pipe.Pipe {
	p.Pack.Compressor, p.Pack.Above = twice{}, 8
	return p
}

// wantFault checks that an error is a fault with an ID and a text.
func wantFault(t *testing.T, err error, id, text string) *fault.Fault {
	t.Helper()
	f, ok := err.(*fault.Fault)
	if !ok || f.ID != id || f.Method != "A.B" || f.Text != text {
		t.Fatalf("got %#v, want %s: %s", err, id, text)
	}
	return f
}

// Messages that came together share memory. Each stays as it is, whatever is done with the others.
func TestRawMessagesAreTheirReceivers(t *testing.T) {
	const rounds = 500
	sizes := []int{128, 0, 1, 128, 128, 3000, 100, 128, 70_000, 2048, 12, 128}
	body := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, sizes[i%len(sizes)]) }
	l := &loop{}
	p := newRaw(l)
	p.Stats = &stats.Method{}
	for i := range rounds {
		msg := body(i)
		if err := p.Send(&msg, nil); err != nil {
			t.Fatal(err)
		}
		clear(msg) // Send keeps nothing
	}
	var got []*[]byte
	for msg, err := range pipe.Messages[[]byte](p) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, msg)
	}
	if sent, received := p.Stats.Sent.Load(), p.Stats.Received.Load(); len(got) != rounds || sent != rounds || received != rounds {
		t.Fatalf("got %d messages, %d and %d are counted, want %d", len(got), sent, received, rounds)
	}
	for i, msg := range got {
		if !bytes.Equal(*msg, body(i)) {
			t.Fatalf("message %d has %d bytes, and not those that were sent", i, len(*msg))
		}
		*msg = append(*msg, "more"...)
		clear(*msg)
	}
}

// A pair is a message with fields that JSON leaves out when they are zero.
type pair struct {
	Name  string `json:",omitempty"`
	Value int    `json:",omitempty"`
}

// With Reuse there is one message, also over several loops, and nothing of the previous message is
// left in it.
func TestReuseReceivesIntoOneMessage(t *testing.T) {
	sent := []pair{{"one", 1}, {"two", 0}, {"", 3}, {}, {"five", 5}}
	p := newPipe(&loop{}, &jsoncodec.Codec{})
	for i := range sent {
		if err := p.Send(&sent[i], nil); err != nil {
			t.Fatal(err)
		}
	}
	messages := pipe.Messages[pair](p)
	messages(nil)
	var one *pair
	n := 0
	for range 2 {
		for msg, err := range messages {
			if one == nil {
				one = msg
			}
			if err != nil || msg != one || *msg != sent[n] {
				t.Errorf("message %d is %+v, at the place of the first one: %t, %v; want %+v", n, *msg, msg == one, err, sent[n])
			}
			if n++; n == 2 {
				break
			}
		}
	}
	if n != len(sent) {
		t.Errorf("got %d messages, want %d", n, len(sent))
	}
}

func TestEncodedMessagesAreSentAsTheyAre(t *testing.T) {
	l := &loop{}
	p, body := newPipe(l, &jsoncodec.Codec{}), []byte("anything")
	if err := p.Send(&pair{}, &body); err != nil || len(l.messages) != 1 || string(l.messages[0].body) != "anything" {
		t.Errorf("sent %q, %v", l.messages, err)
	}
}

func TestLargeMessagesAreCompressed(t *testing.T) {
	l := &loop{room: 1 << 20}
	p := compressing(newRaw(l))
	for _, text := range []string{"short", "longlong", strings.Repeat("also, ", 2)} {
		msg := []byte(text)
		if err := p.Send(&msg, nil); err != nil {
			t.Fatal(err)
		}
		if packed := l.messages[0].flags == wire.Compressed; packed != (len(text) >= 8) || packed != (len(l.messages[0].body) == len(text)/2) {
			t.Errorf("%s: sent %q, compressed: %v", text, l.messages[0].body, packed)
		}
		var got []byte
		if err := p.Receive(&got); err != nil || string(got) != text {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
		if len(text) >= 8 && l.held != len(text) {
			t.Errorf("%s: %d bytes are counted, want those of the last message", text, l.held)
		}
	}
}

func TestMessagesThatCannotBeSent(t *testing.T) {
	l := &loop{}
	p := newRaw(l)
	p.MaxMessage = 10
	large, broken, number := make([]byte, 11), []byte("broken"), 5
	wantFault(t, p.Send(&large, nil), "YDL2201", "a message of the stream has 11 bytes, this side's limit is 10")
	f := wantFault(t, p.Send(&number, nil), "YDL2103", "the raw codec takes []byte or *[]byte, not *int (codec raw)")
	if !f.Misfit || f.Cause == nil {
		t.Errorf("a message of another type: got %+v", f)
	}
	f = wantFault(t, p.NilMessage(), "YDL2103", "a message of the stream is a nil pointer; Send.End ends the stream")
	if of, ok := errors.AsType[pipe.NilMessageError](f); !ok || of.Of != p {
		t.Errorf("the cause does not tell the pipe: %+v", f)
	}
	compressing(p)
	p.Pack.Above = 1
	if err := p.Send(&broken, nil); err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("a compressor that fails: got %v", err)
	}
	refused := errors.New("refused")
	p.Each = []func(any, bool) error{func(_ any, sent bool) error { return fmt.Errorf("%w: %v", refused, sent) }}
	if err := p.Send(&broken, nil); !errors.Is(err, refused) {
		t.Errorf("a message that Each refuses: got %v", err)
	}
	if len(l.messages) > 0 {
		t.Errorf("sent %q", l.messages)
	}
	if p.End(); !l.ended {
		t.Error("End did not end the stream")
	}
}

func TestMessagesThatCannotBeReceived(t *testing.T) {
	packed := func(body string) []message { return []message{{[]byte(body), wire.Compressed}} }
	lost := errors.New("lost")
	for name, test := range map[string]struct {
		stream       loop
		uncompressed bool // no compressor was agreed
		id, text     string
	}{
		"unfit":         {loop{messages: []message{{body: []byte("x")}}}, false, "unfit", `a message from there does not fit *pipe_test.pair: invalid character 'x' looking for beginning of value (codec json)`},
		"unnamed":       {loop{messages: packed("xx")}, true, "torn", "a message from there is compressed, and the compressor was not named"},
		"torn":          {loop{messages: packed("broken"), room: 1 << 20}, false, "torn", "a message from there cannot be decompressed: it is broken (twice)"},
		"without room":  {loop{messages: packed("xx")}, false, "YDL3007", "this side has no memory left to decompress a message from there"},
		"unpacked":      {loop{messages: packed(strings.Repeat("x", 1<<20)), room: 1 << 30}, false, "YDL2204", "a message from there has more than 1048576 bytes after decompression (twice): that is Limits.MaxDecompressed"},
		"large":         {loop{fail: &mux.TooLargeError{Size: 9, Limit: 8}}, false, "YDL2202", "a message from there has 9 bytes, this side's limit is 8"},
		"no memory":     {loop{fail: memory.ErrFull}, false, "YDL3007", "this side has no memory left for a message from there"},
		"broken":        {loop{fail: &mux.BrokenError{Cause: lost}}, false, "YDL2205", "a message from there is broken: lost"},
		"after the end": {loop{fail: mux.ErrSendEnded}, false, "YDL2007", "a message was sent after the end of the stream"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPipe(&test.stream, &jsoncodec.Codec{})
			if !test.uncompressed {
				compressing(p)
			}
			wantFault(t, p.Receive(new(pair)), test.id, test.text)
			if test.stream.held != 0 {
				t.Errorf("%d bytes are still counted", test.stream.held)
			}
		})
	}
	p := newRaw(&loop{fail: lost})
	if err := p.Rest(); err != lost {
		t.Errorf("of the connection: got %v", err)
	}
}

func TestAPipeNotesItsFirstMessage(t *testing.T) {
	begun, opened := false, time.Duration(0)
	p := newRaw(&loop{messages: []message{{body: []byte("x")}, {body: []byte("y")}}})
	p.Begun, p.Opened = &begun, &opened
	seen := watched{}
	p.Watch = &seen
	for range 2 {
		if err := p.Receive(new([]byte)); err != nil || !begun || opened == 0 {
			t.Fatalf("%v, begun: %v at %v", err, begun, opened)
		}
		opened = 1 // is not set again
	}
	if err := p.Send(&[]byte{1, 2, 3}, nil); err != nil || opened != 1 || !slices.Equal(seen, watched{-1, -1, 3}) {
		t.Errorf("%v, at %v, watched %v", err, opened, seen)
	}
	if err := p.Rest(); err != nil {
		t.Error(err)
	}
}

// watched has the sizes of messages, those of received ones negative.
type watched []int

func (w *watched) Message(_ context.Context, sent bool, n int) {
	if !sent {
		n = -n
	}
	*w = append(*w, n)
}
