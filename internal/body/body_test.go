// SPDX-License-Identifier: Apache-2.0

package body_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/body"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/jsoncodec"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/rawcodec"
	"github.com/yodel-rpc/yodel/internal/unpack"
)

type (
	list []any
	done struct {
		Body    []byte
		Several bool
	}
	format = body.Format[list, done]
	raw    = rawcodec.Codec[[]byte]
)

var (
	caller = &body.Side{Name: "this client", MaxMessage: 100}
	server = &body.Side{Name: "the server", Serves: true, MaxMessage: 100}
)

// newFormat returns a format without a compressor.
func newFormat(side *body.Side, codec body.Codec) *format {
	f := &format{Side: side, Pack: unpack.Packer{Limits: unpack.Limits{Most: 1 << 20}, Gate: new(unpack.Gate)}}
	f.Use(codec)
	return f
}

// twice is a compressor of texts that are a text and the same text again. It makes others larger.
type twice struct{}

func (twice) Name() string { return "twice" }

func (twice) Append(dst, src []byte) ([]byte, error) {
	half := src[:len(src)/2]
	switch {
	case string(src) == "broken":
		return nil, errors.New("it is broken")
	case bytes.Equal(src, bytes.Repeat(half, 2)):
		return append(append(dst, '2'), half...), nil
	}
	return append(append(dst, '1'), src...), nil
}

func (twice) Decompress(dst, src []byte, limit int) ([]byte, error) {
	switch n := len(src) - 1; {
	case n < 0:
		return nil, errors.New("it is empty")
	case src[0] == '1':
		return append(dst, src[1:]...), nil
	case 2*n > limit:
		return nil, unpack.ErrTooLarge
	}
	return append(append(dst, src[1:]...), src[1:]...), nil
}

// packing returns a format that compresses bodies of above bytes or more.
func packing(side *body.Side, above int) *format {
	f := newFormat(side, raw{})
	f.Pack.Compressor, f.Pack.Above = twice{}, above
	return f
}

// an account has room for some bytes.
type account struct{ room int }

func (a *account) Take(n int) bool {
	if n > a.room {
		return false
	}
	a.room -= n
	return true
}

func (a *account) Give(n int) { a.room += n }

// want checks that a fault has an ID and a text, and says whether the method was executed.
func want(t *testing.T, got error, id, text string, unprocessed bool) {
	t.Helper()
	f, ok := got.(*fault.Fault)
	if !ok || f.ID != id || f.Method != "A.B" || f.Text != text || f.Unprocessed != unprocessed {
		t.Errorf("got %#v, want %s: %q, not processed: %v", got, id, text, unprocessed)
	}
}

// memoryOf returns the address of the memory of b.
func memoryOf(b []byte) *byte { return &b[:1][0] }

func TestMessagesAreEncodedAndDecoded(t *testing.T) {
	f := newFormat(caller, jsoncodec.New())
	one, word := 0, ""
	for name, test := range map[string]struct {
		message, into any
		several       bool
		want          string
	}{
		"one":             {7, &one, false, "7"},
		"several":         {list{7, "x"}, list{&one, &word}, true, "\x02\x027\x04\"x\""},
		"encoded":         {&done{Body: []byte("7")}, &one, false, "7"},
		"several encoded": {&done{[]byte("\x02\x027\x04\"x\""), true}, list{&one, &word}, true, "\x02\x027\x04\"x\""},
	} {
		one, word = 0, ""
		if got := body.Several[list, done](test.message); got != test.several {
			t.Errorf("%s: several: %v", name, got)
		}
		var scratch []byte
		got, fail := f.Encode(&scratch, "A.B", test.message, false)
		if fail != nil || string(got) != test.want {
			t.Fatalf("%s: got %q, %v, want %q", name, got, fail, test.want)
		}
		if appended, err := f.Append([]byte("before "), test.message); err != nil || string(appended) != "before "+test.want {
			t.Errorf("%s: got %q, %v", name, appended, err)
		}
		if err := f.Fill(got, test.several, test.into); err != nil || one != 7 || word != "x" && test.several {
			t.Errorf("%s: got %d, %q, %v", name, one, word, err)
		}
		copied := done{Body: make([]byte, 0, 64)}
		memory := memoryOf(copied.Body)
		if err := f.Fill(got, test.several, &copied); err != nil || string(copied.Body) != test.want || copied.Several != test.several {
			t.Errorf("%s: the copy is %q, %v, %v", name, copied.Body, copied.Several, err)
		}
		if memoryOf(copied.Body) != memory {
			t.Errorf("%s: the copy is not in its own memory", name)
		}
		if err := f.Fill(got, test.several, nil); err != nil {
			t.Errorf("%s: got %v for a body that is discarded", name, err)
		}
	}
	if err := f.Fill([]byte("7"), true, &one); err == nil || err.Error() != "it is of several values: true" {
		t.Errorf("several values for one: got %v", err)
	}
	if err := f.Fill([]byte("7"), false, list{&one}); err == nil || err.Error() != "it is of several values: false" {
		t.Errorf("one value for several: got %v", err)
	}
	if err := f.Decode([]byte(`"x"`), &one); err == nil {
		t.Error("a string was decoded into an int")
	}
}

func TestMemoryIsUsedAgain(t *testing.T) {
	f := newFormat(caller, jsoncodec.New())
	scratch := make([]byte, 0, 64)
	memory := memoryOf(scratch)
	for range 3 {
		got, fail := f.Encode(&scratch, "A.B", "hello", false)
		if fail != nil || memoryOf(got) != memory || memoryOf(scratch) != memory || string(got) != `"hello"` {
			t.Fatalf("got %q in other memory, %v", got, fail)
		}
	}
	got, _ := f.Encode(&scratch, "A.B", strings.Repeat("x", 200), false)
	if memoryOf(scratch) == memory || memoryOf(scratch) != memoryOf(got) {
		t.Error("the larger memory is not kept")
	}
}

// A body that exists already is not copied, unless it must outlive its message.
func TestBodiesAreShared(t *testing.T) {
	bytes := []byte("hello")
	for name, test := range map[string]struct {
		codec   body.Codec
		message any
		own     bool
		shared  bool
	}{
		"raw":               {raw{}, &bytes, false, true},
		"raw, own":          {raw{}, &bytes, true, false},
		"encoded":           {jsoncodec.New(), &done{Body: bytes}, false, true},
		"encoded, own":      {jsoncodec.New(), &done{Body: bytes}, true, false},
		"bytes, not raw":    {jsoncodec.New(), &bytes, false, false},
		"encoded, with raw": {raw{}, &done{Body: bytes}, false, true},
	} {
		var scratch []byte
		got, fail := newFormat(caller, test.codec).Encode(&scratch, "A.B", test.message, test.own)
		if fail != nil || (memoryOf(got) == memoryOf(bytes)) != test.shared || (scratch == nil) != test.shared {
			t.Errorf("%s: got %q, %v", name, got, fail)
		}
	}
}

func TestLargeRawBodiesAreTakenOver(t *testing.T) {
	large := make([]byte, body.Large+1)
	small, roomy := []byte(nil), make([]byte, 0, len(large))
	number := 0
	for name, test := range map[string]struct {
		codec body.Codec
		body  []byte
		into  any
		want  bool
	}{
		"large":             {raw{}, large, &small, true},
		"at the limit":      {raw{}, large[1:], &small, false},
		"room in the slice": {raw{}, large, &roomy, false},
		"no bytes":          {raw{}, large, &number, false},
		"another codec":     {jsoncodec.New(), large, &small, false},
	} {
		f := newFormat(server, test.codec)
		if got := f.Recipient(test.body, test.into); (got != nil) != test.want {
			t.Errorf("%s: got %v", name, got)
		}
		if _, isRaw := test.codec.(raw); f.Raw() != isRaw {
			t.Errorf("%s: raw: %v", name, f.Raw())
		}
	}
}

func TestBodiesAreCompressed(t *testing.T) {
	for name, test := range map[string]struct {
		body   string
		above  int
		always bool
		want   string // "" if it is not compressed
	}{
		"smaller":              {"abcabc", 6, false, "2abc"},
		"too short":            {"abcabc", 7, false, ""},
		"too short, always":    {"abcabc", 7, true, ""},
		"larger":               {"abcdef", 6, false, ""},
		"larger, always":       {"abcdef", 6, true, "1abcdef"},
		"empty":                {"", 1, false, ""},
		"empty, always":        {"", 1, true, "2"},
		"too large to unpack":  {strings.Repeat("x", 64<<10+2), 1, false, ""},
		"too large, yet again": {strings.Repeat("x", 64<<10+2), 1, true, ""},
	} {
		f := packing(caller, test.above)
		f.Pack.Limits = unpack.Limits{Most: 1 << 20, Ratio: 1}
		var scratch []byte
		got, compressed, fail := f.Compress(&scratch, "A.B", []byte(test.body), test.always)
		if test.want == "" && (compressed || string(got) != test.body) || test.want != "" && (!compressed || string(got) != test.want) || fail != nil {
			t.Errorf("%s: got %.20q, %v, %v, want %q", name, got, compressed, fail, test.want)
		}
		if packs := f.Packs([]byte(test.body)); packs != (len(test.body) >= test.above) {
			t.Errorf("%s: packs: %v", name, packs)
		}
	}
	f := newFormat(caller, raw{})
	if got, compressed, fail := f.Compress(nil, "A.B", []byte("abcabc"), true); string(got) != "abcabc" || compressed || fail != nil || f.Packs(nil) {
		t.Errorf("without a compressor: got %q, %v, %v", got, compressed, fail)
	}
}

func TestBodiesAreDecompressed(t *testing.T) {
	f := packing(server, 1)
	for name, test := range map[string]struct {
		body string
		room int
		want string
		err  error
	}{
		"fits":      {"2abc", 4096, "abcabc", nil},
		"no memory": {"2abc", 4095, "", memory.ErrFull},
	} {
		a := &account{test.room}
		got, err := f.Pack.Unpack(context.Background(), a, nil, []byte(test.body))
		if string(got) != test.want || !errors.Is(err, test.err) || a.room != test.room-len(got) {
			t.Errorf("%s: got %q, %v, %d bytes left", name, got, err, a.room)
		}
	}
}

func TestFaultsOfBodiesThatAreSent(t *testing.T) {
	var nothing *int
	for _, side := range []*body.Side{nil, caller, server} {
		id, unprocessed := "YDL2103", true
		if side == server {
			id, unprocessed = "YDL2104", false
		}
		f := newFormat(side, jsoncodec.New())
		var scratch []byte
		_, fail := f.Encode(&scratch, "A.B", make(chan int), false)
		want(t, fail, id, "json: chan int: a chan cannot be encoded (codec json)", unprocessed)
		if !fail.Misfit || fail.Cause == nil || scratch != nil {
			t.Errorf("got %+v", fail)
		}
		p := packing(side, 1)
		_, _, fail = p.Compress(&scratch, "A.B", []byte("broken"), false)
		want(t, fail, id, "compress with twice: it is broken", unprocessed)
		_, _, fail = p.Compress(&scratch, "A.B", []byte("broken"), true)
		want(t, fail, id, "compress with twice: it is broken", unprocessed)
	}
	if caller.Check("A.B", 100) != nil || server.Check("A.B", 100) != nil {
		t.Error("a body at the limit is refused")
	}
	want(t, caller.Check("A.B", 101), "YDL2201", "the request has 101 bytes, this client's limit is 100", true)
	want(t, server.Check("A.B", 101), "YDL2202", "the reply has 101 bytes, the server's limit is 100", false)
	plain := newFormat(caller, raw{})
	want(t, plain.CheckRequest("A.B", nothing), "YDL2103", "the request is a nil *int", true)
	for _, message := range []any{nil, 7, new(int), (*struct{})(nil)} {
		if fail := plain.CheckRequest("A.B", message); fail != nil {
			t.Errorf("%T: got %v", message, fail)
		}
	}
}

func TestFaultsOfBodiesThatAreReceived(t *testing.T) {
	why := errors.New("it is odd")
	for _, test := range []struct {
		side        *body.Side
		id          string
		unprocessed bool
		misfit      bool
	}{{nil, "YDL2102", false, false}, {caller, "YDL2102", false, false}, {server, "YDL2101", true, true}} {
		got := newFormat(test.side, raw{}).Unfit("A.B", "the body", "*int", why)
		want(t, got, test.id, "the body does not fit *int: it is odd (codec raw)", test.unprocessed)
		if got.Cause != why || got.Misfit != test.misfit {
			t.Errorf("got %+v", got)
		}
	}
	plain, packs := newFormat(server, raw{}), packing(server, 1)
	want(t, plain.Torn(unpack.ErrUnagreed, "A.B", "the request", nil), "YDL2101", "the request is compressed, and the compressor was not named", true)
	want(t, packs.Torn(why, "A.B", "the request", nil), "YDL2101", "the request cannot be decompressed: it is odd (twice)", true)
	want(t, packs.Torn(memory.ErrFull, "A.B", "the request", nil), "YDL3007", "the server has no memory left to decompress the request", true)
	want(t, packs.Torn(unpack.ErrTooLarge, "A.B", "the request", nil), "YDL2204", "the request has more than 1048576 bytes after decompression (twice): that is Limits.MaxDecompressed", true)

	plain, packs = newFormat(caller, raw{}), packing(caller, 1)
	want(t, packs.Torn(memory.ErrFull, "A.B", "the reply", nil), "YDL3007", "this client has no memory left to decompress the reply", false)
	for text, got := range map[string]error{
		"it is compressed, which was not agreed": plain.Torn(unpack.ErrUnagreed, "A.B", "the reply", nil),
		"decompress with twice: it is odd":       packs.Torn(why, "A.B", "the reply", nil),
	} {
		if broken, ok := got.(*mux.BrokenError); !ok || broken.Cause.Error() != text {
			t.Errorf("got %v, want %s", got, text)
		}
	}
	if _, err := plain.Pack.Unpack(context.Background(), &account{100}, nil, []byte("2abc")); !errors.Is(err, unpack.ErrUnagreed) {
		t.Errorf("without a compressor: got %v", err)
	}
}

func TestRepliesThatCannotBeDecodedInto(t *testing.T) {
	one, channel := 0, make(chan int)
	json, bytes := newFormat(caller, jsoncodec.New()), newFormat(caller, raw{})
	for _, into := range []any{nil, &one, list{&one, &one}, list{}, &done{}} {
		if fail := json.CheckReply("A.B", into); fail != nil {
			t.Errorf("%T: got %v", into, fail)
		}
	}
	if fail := bytes.CheckReply("A.B", &done{}); fail != nil {
		t.Errorf("a raw reply that stays encoded: got %v", fail)
	}
	want(t, json.CheckReply("A.B", one), "YDL2102", "the reply cannot be decoded into int: give a pointer to it", true)
	want(t, json.CheckReply("A.B", list{&one, nil}), "YDL2102", "result 2 cannot be decoded into <nil>: give a pointer to it", true)
	if fail := bytes.CheckReply("A.B", &one); fail == nil || fail.ID != "YDL2102" || !strings.Contains(fail.Text, "(codec raw)") {
		t.Errorf("a raw reply into an int: got %v", fail)
	}
	if fail := json.CheckReply("A.B", &channel); fail == nil {
		t.Error("a reply can be decoded into a channel")
	}
}

// A panic of a message's own code in a codec goes on, so that it is counted and logged.
func TestPanicsInCodecsGoOn(t *testing.T) {
	f := newFormat(caller, jsoncodec.New())
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "as asked") {
			t.Errorf("got %v", said)
		}
	}()
	err := f.Decode([]byte("7"), new(bomb))
	t.Errorf("got %v", err)
}

type bomb struct{}

func (*bomb) MarshalJSON() ([]byte, error) { return []byte("7"), nil }
func (*bomb) UnmarshalJSON([]byte) error   { panic("as asked") }

func TestArgumentsForAnotherProtocol(t *testing.T) {
	for _, test := range []struct {
		above      int
		message    string
		want       string
		compressed bool
	}{{1000, "abc", "<abc", false}, {1, "abcabc", "<2abc", true}, {1, "abc", "<1abc", true}, {1, "", "<2", true}, {2, "", "<", false}} {
		got, compressed, fail := packing(caller, test.above).AppendForeign([]byte("<"), "A.B", &done{Body: []byte(test.message)})
		if string(got) != test.want || compressed != test.compressed || fail != nil {
			t.Errorf("%+v: got %q, compressed %v, %v", test, got, compressed, fail)
		}
	}
	got, _, fail := packing(caller, 1).AppendForeign([]byte("<"), "A.B", &done{Body: []byte("broken")})
	if want(t, fail, "YDL2103", "compress with twice: it is broken", true); string(got) != "<" {
		t.Errorf("got %q", got)
	}
	_, _, fail = newFormat(caller, raw{}).AppendForeign(nil, "A.B", &done{Body: make([]byte, 101)})
	want(t, fail, "YDL2201", "the request has 101 bytes, this client's limit is 100", true)
}
