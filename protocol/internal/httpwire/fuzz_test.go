// SPDX-License-Identifier: Apache-2.0

package httpwire_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// Metadata that Set accepts arrives, through the text of HTTP/1 too: with a key in lower case,
// without spaces around the value, and in base64 if the key says so.
func FuzzMetadata(f *testing.F) {
	f.Add("color", "dark blue", false)
	f.Add("data-bin", "AAEC, BAUG", true)
	f.Add("Content-Type", "x\r\ny", false)
	f.Add("x-bin", "AAEC\r\nBAUG", false)
	f.Add("x-bin", " ", true)
	f.Add("X-Bin", "\xff\x00", true)
	f.Add("X-Order", "\t7 ", true)
	f.Fuzz(func(t *testing.T, key, value string, trailer bool) {
		prefix := ""
		if trailer {
			prefix = "Trailer-"
		}
		md, h, left := yodel.Metadata{key: value}, make(http.Header), 0
		httpwire.GRPC.Set(h, prefix, md, func(string, string) { left++ })
		if left+len(h) > 1 {
			t.Errorf("%v set %v and was left out", md, h)
		}
		if len(h) == 0 {
			return
		}
		want := strings.Trim(value, " \t")
		if strings.HasSuffix(strings.ToLower(key), "-bin") {
			want = decoded(value)
		}
		var text bytes.Buffer
		if err := h.Write(&text); err != nil {
			t.Fatal(err)
		}
		read, err := textproto.NewReader(buffered(text.String() + "\r\n")).ReadMIMEHeader()
		if err != nil {
			t.Fatalf("%q: %v", text.String(), err)
		}
		md = httpwire.GRPC.Prefixed(http.Header(read), strings.ToLower(prefix))
		got, ok := md[strings.ToLower(key)]
		if ok && strings.HasSuffix(strings.ToLower(key), "-bin") {
			got = decoded(got)
		}
		if !ok || len(md) != 1 || got != want {
			t.Errorf("%q: %q became %q by %q", key, value, md, text.String())
		}
	})
}

// decoded returns the bytes in a list of base64, or else value.
func decoded(value string) string {
	var all []string
	for part := range strings.SplitSeq(value, ",") {
		b, err := httpwire.Binary(strings.ReplaceAll(part, " ", ""))
		if err != nil {
			return value
		}
		all = append(all, string(b))
	}
	return strings.Join(all, ",")
}

// Whatever a client sends, metadata has no headers of HTTP and of the protocols, and can be sent on
// if its characters allow it.
func FuzzHeaders(f *testing.F) {
	f.Add("Color: blue\r\nColor: red\r\nGrpc-Timeout: 5S\r\nYodel-Criticality: 200\r\nData-Bin: ??\r\n")
	f.Add("Idempotency-Key: x\r\nTraceparent: 00-a-b-01\r\nTracestate: a=b\r\nYodel-Budget: -1\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := textproto.NewReader(buffered(text + "\r\n")).ReadMIMEHeader()
		if err != nil {
			return
		}
		for name := range h {
			if http.CanonicalHeaderKey(strings.ToLower(name)) != name {
				return // net/http refuses it
			}
		}
		for key, value := range httpwire.Connect.Metadata(http.Header(h)) {
			if key != strings.ToLower(key) || strings.HasPrefix(key, "grpc-") || strings.HasPrefix(key, "connect-") || strings.HasPrefix(key, "yodel-") || key == "content-type" {
				t.Errorf("the metadata has %q", key)
			}
			if want := strings.Join(h.Values(key), ", "); value != want {
				t.Errorf("%q is %q, want %q", key, value, want)
			}
		}
		var call yodel.Call
		httpwire.Options(http.Header(h), &call)
		if call.Criticality < -100 || call.Criticality > 100 || call.Budget < 0 || call.Attempt < 0 {
			t.Errorf("the call has criticality %d, budget %d, attempt %d", call.Criticality, call.Budget, call.Attempt)
		}
		if http.Header(h).Get("Origin") != "" && (call.Criticality != 0 || call.Budget != 0 || call.Tenant != "" || call.Key != "" || call.Explain) {
			t.Errorf("a web page has set %+v", call)
		}
		again, sent := yodel.Call{}, make(http.Header)
		httpwire.SetOptions(sent, &call, call.Attempt)
		httpwire.Options(sent, &again)
		if again.Criticality != call.Criticality || again.Budget != call.Budget || again.Tenant != call.Tenant || again.Attempt != call.Attempt ||
			again.Explain != call.Explain || again.IdempotencyKey != call.IdempotencyKey {
			t.Errorf("%+v became %+v", call, again)
		}
	})
}

func buffered(text string) *bufio.Reader { return bufio.NewReader(strings.NewReader(text)) }

func FuzzTimeout(f *testing.F) {
	for _, s := range []string{"", "5S", "99999999H", "00000001n", "100m", "1", "12345678", "-1m", "+1m", "99999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := httpwire.ParseTimeout(s)
		if d < 0 || d != 0 && err != nil || (d == 0) != (err != nil || s == "") && len(s) < 7 {
			t.Errorf("grpc-timeout %q: got %d, %v", s, d, err)
		}
		if d > 0 {
			back, err := httpwire.ParseTimeout(httpwire.Timeout(d))
			if err != nil || back < d || back-d > d/1e6 {
				t.Errorf("%s became %q and then %s, %v", d, httpwire.Timeout(d), back, err)
			}
		}
		ms, err := httpwire.ParseMillis(s)
		if ms < 0 || ms != 0 && err != nil {
			t.Errorf("connect-timeout-ms %q: got %d, %v", s, ms, err)
		}
		if ms > 0 {
			if back, err := httpwire.ParseMillis(httpwire.Millis(ms)); err != nil || (back-ms).Abs() > 2*time.Millisecond {
				t.Errorf("%s became %q and then %s, %v", ms, httpwire.Millis(ms), back, err)
			}
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add(httpwire.AppendStatus(nil, &yodel.Error{Code: 5, Message: "m", Details: []yodel.Detail{{Type: "a.B", Value: []byte("x")}, {}}}), "a.B", []byte("y"))
	f.Add([]byte{0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, "x", []byte(nil))
	f.Add([]byte{0x1a, 2, 0x12, 0x7f, 0x0b}, "", []byte(nil))
	f.Fuzz(func(t *testing.T, b []byte, name string, value []byte) {
		var e yodel.Error
		if err := httpwire.ParseStatus(b, &e); err != nil && e.Details != nil {
			t.Errorf("%x: got %v and %v", b, err, e.Details)
		}
		sent := &yodel.Error{Code: 5, Message: "m", Details: []yodel.Detail{{Type: name[strings.LastIndexByte(name, '/')+1:], Value: value}}}
		var got yodel.Error
		if err := httpwire.ParseStatus(httpwire.AppendStatus(nil, sent), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Details) != 1 || got.Details[0].Type != sent.Details[0].Type || !bytes.Equal(got.Details[0].Value, value) {
			t.Errorf("%q became %q", sent.Details, got.Details)
		}
	})
}

func FuzzMessage(f *testing.F) {
	for _, s := range []string{"", "it failed", "100%", "ü\r\n", "%41%zz%", "\xff", "%C3%BC"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, message string) {
		escaped := httpwire.EscapeMessage(message)
		for _, c := range []byte(escaped) {
			if c < ' ' || c > '~' {
				t.Fatalf("%q is escaped as %q", message, escaped)
			}
		}
		if got := httpwire.UnescapeMessage(escaped); got != strings.ToValidUTF8(message, "\uFFFD") {
			t.Errorf("%q became %q", message, got)
		}
		if got := httpwire.UnescapeMessage(message); !utf8.ValidString(got) {
			t.Errorf("%q became %q", message, got)
		}
	})
}

// The reader returns the messages of any stream, whatever pieces it arrives in, counts what it
// allocates, and allocates no more than the largest message that it may read.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 'x', 1, 0, 0, 0, 0, 2, 0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 'x'})
	f.Add([]byte{0, 0, 0, 1, 0, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		const most = 200
		held := 0
		r := httpwire.Reader{From: iotest.OneByteReader(bytes.NewReader(b)), Max: most, Reserve: func(n int) bool {
			held += n
			return n > 0
		}}
		var again []byte
		for {
			flags, body, err := r.Next()
			if errors.Is(err, io.EOF) {
				if !slices.Equal(again, b) {
					t.Errorf("%x was read as %x", b, again)
				}
				break
			}
			if _, ok := errors.AsType[*yodel.Error](err); err != nil && !ok {
				t.Errorf("%x: the error is %v", b, err)
			}
			if err != nil {
				break
			}
			prefix := httpwire.Prefix(flags, len(body))
			again = append(append(again, prefix[:]...), body...)
		}
		if !bytes.HasPrefix(b, again) || held != r.Held() || held > most {
			t.Errorf("%x was read as %x, with %d bytes of %d", b, again, held, r.Held())
		}
		if len(b) >= 5 && len(again) == 0 && binary.BigEndian.Uint32(b[1:]) == 0 {
			t.Errorf("%x: the first message is empty, and was not read", b)
		}
	})
}
