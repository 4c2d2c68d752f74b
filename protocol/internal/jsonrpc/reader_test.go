// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/yodel-rpc/yodel"
)

// FuzzScanner compares the scanner with encoding/json. It also cuts the input into pieces.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, ` {"a":[1,-0,2.5e+7,0.1E-2,true,false,null,"\"\\\/\b\f\n\r\t\u00eF"]}`, `[{"a":{}},[[],{}]]`, `[01]`, `[1.]`, `[-]`, `[1e]`, `[1e+]`,
		`{"a"}`, `{"a":}`, `{"a":1,}`, `[1,]`, `[,]`, `{1:2}`, `[}`, `{]`, `["\x"]`, `["\u12g4"]`, "[\"\x01\"]", `[tru]`, `[nulll]`, `[1 2]`, `["a" "b"]`, `{"a":1 "b"}`, `x`, `1`,
	} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		n, complete, err := new(scanner).scan(b)
		trimmed := bytes.TrimLeft(b, " \t\r\n")
		container := len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[')
		if complete && !json.Valid(b[:n]) {
			t.Fatalf("%q was taken for a value", b[:n])
		}
		if container && json.Valid(b) && (!complete || len(bytes.TrimSpace(b[n:])) > 0) {
			t.Fatalf("%q was not taken for a value: %d, %v, %v", b, n, complete, err)
		}
		if (validate(b) == nil) != json.Valid(b) {
			t.Fatalf("validate %q: got %v", b, validate(b))
		}
		pieces, total := new(scanner), 0
		for rest := b; len(rest) > 0; {
			piece := rest[:min(1+max(size, 0)%7, len(rest))]
			m, done, failed := pieces.scan(piece)
			if total += m; done || failed != nil {
				if total != n || done != complete || (failed != nil) != (err != nil) || err != nil && failed.Error() != err.Error() {
					t.Fatalf("%q in pieces: got %d, %v, %v, want %d, %v, %v", b, total, done, failed, n, complete, err)
				}
				return
			}
			rest = rest[m:]
		}
		if complete || err != nil {
			t.Fatalf("%q in pieces: no end", b)
		}
	})
}

// FuzzParse parses arbitrary values, whole and cut off.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","method":"a\u0062","params":[1,{"a":[]}],"id":"x"}`))
	f.Add([]byte(`{"id":1,"result":null,"error":"not_found: x"}`))
	f.Add([]byte(`{"id":1,"error":{"code":-32005,"message":"m","data":{"code":"not_found","details":[{"type":"a","value":"eA=="}],"retryAfterMs":5}}}`))
	f.Add([]byte(`[1,"a",[2]]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 0 { // b may be any part of a value
			new(TooLargeError).lookInto(b)
			new(TooLargeError).finish(len(b), b)
		}
		b = bytes.TrimSpace(b)
		if !json.Valid(b) {
			return
		}
		for _, version1 := range []bool{false, true} {
			q := parse(b, version1)
			_, _ = ParseReply(b, version1) // only for panics
			var want struct {
				Method any             `json:"method"`
				Params json.RawMessage `json:"params"`
			}
			if q.invalid != "" || json.Unmarshal(b, &want) != nil {
				continue
			}
			if method, ok := want.Method.(string); ok && method != q.method && !strings.EqualFold(method, q.method) && !foldsOf(b, "method") {
				t.Errorf("%s: got the method %q, want %q", b, q.method, method)
			}
		}
		if b[0] == '[' {
			var want []json.RawMessage
			if err := json.Unmarshal(b, &want); err != nil {
				return
			}
			got := elements(b, len(b))
			if len(got) != len(want) {
				t.Fatalf("%s: got %d elements, want %d", b, len(got), len(want))
			}
			for i := range got {
				if !bytes.Equal(got[i], bytes.TrimSpace(want[i])) {
					t.Errorf("%s: got the element %s, want %s", b, got[i], want[i])
				}
			}
		}
	})
}

// foldsOf reports whether an object has several members whose names differ from name only in their
// case. Package encoding/json takes them for one.
func foldsOf(b []byte, name string) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(b, &members) != nil {
		return true
	}
	n := 0
	for key := range members {
		if strings.EqualFold(key, name) {
			n++
		}
	}
	return n != 1
}

// The memory of a value grows with its bytes, and is counted before it is allocated.
func TestMemoryOfAReader(t *testing.T) {
	for _, size := range []int{10, 1000, 32 << 10, 33 << 10, 60_000, 100_000, 1 << 20} {
		text := `{"a":"` + strings.Repeat("x", size) + `"}`
		counted, most := 0, 0
		r := &Reader{
			Source: bufio.NewReaderSize(strings.NewReader(text+text), 32<<10), Limit: 2 << 20,
			Reserve: func(n int) bool { counted += n; most = max(most, counted); return true },
			Release: func(n int) { counted -= n },
		}
		for range 2 {
			counted, most = 0, 0
			got, err := r.Next()
			if err != nil || string(got) != text {
				t.Fatalf("%d bytes: got %d bytes, %v", size, len(got), err)
			}
			if counted != len(got) || most > 3*len(got)+1 {
				t.Errorf("%d bytes: %d are counted, and %d were", len(got), counted, most)
			}
		}
	}
}

// The reader skips a value that is too large, or for which the server has no memory.
func TestReaderSkips(t *testing.T) {
	large := strings.Repeat("x", 100_000)
	for name, text := range map[string]string{
		"ID first, version 1":     `{"id":"a","x":"` + large + `"}`,
		"ID last, version 1":      `{"x":"` + large + `" , "id" : "a" }`,
		"ID first":                `{"id":"a","jsonrpc":"2.0","x":"` + large + `"}`,
		"ID last":                 `{"jsonrpc":"2.0","x":"` + large + `" , "id" : "a" }`,
		"ID and version are last": `{"x":"` + large + `" , "jsonrpc":"2.0","id" : "a" }`,
	} {
		for _, memory := range []bool{false, true} {
			counted := 0
			r := &Reader{Source: bufio.NewReader(strings.NewReader(text + `[1]`)), Limit: 1000}
			r.Release = func(n int) { counted -= n }
			r.Reserve = func(n int) bool { counted += n; return true }
			if memory {
				r.Limit = 1 << 20
				r.Reserve = func(n int) bool {
					if n > 20_000 {
						return false
					}
					counted += n
					return true
				}
			}
			_, err := r.Next()
			e, ok := errors.AsType[*TooLargeError](err)
			if !ok || e.Size != len(text) || string(e.ID) != `"a"` || e.Version1 != strings.Contains(name, "version 1") || e.Memory != memory || counted != 0 {
				t.Errorf("%s: got %v, %+v, and %d bytes are counted", name, err, e, counted)
			}
			if b, err := r.Next(); err != nil || string(b) != "[1]" {
				t.Errorf("%s: the next value is %s, %v", name, b, err)
			}
			if _, err := r.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: at the end: %v", name, err)
			}
		}
	}
}

// What looks like an ID at the end of a value, and is none, is not taken for it.
func TestIDOfEnd(t *testing.T) {
	for text, want := range map[string]string{
		`x","id":5}`: "5", `x" , "id" : "a" }`: `"a"`, `1,"id":-7}`: "-7",
		`{"x":1,"id":5}}`: "", `,\"id\":5"}`: "", `{"id":5}]`: "", `"x":"id"}`: "", `,"id":5]`: "", `,"id":1.5}`: "1.5", `,"id":1.}`: "", `,"id":null}`: "", `,"id":"a\"}`: "", `"id":5}`: "", ``: "",
	} {
		if got := idOfEnd([]byte(text)); string(got) != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// A value may arrive byte by byte, and be cut off anywhere.
func TestReaderAtEachByte(t *testing.T) {
	text := ` {"a":[1,"\u00e4\"",{}]}`
	for n := range len(text) {
		r := &Reader{Source: bufio.NewReader(iotest.OneByteReader(strings.NewReader(text[:n]))), Limit: 100}
		want := io.ErrUnexpectedEOF
		if n <= 1 {
			want = io.EOF
		}
		if _, err := r.Next(); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", text[:n], err, want)
		}
	}
	r := &Reader{Source: bufio.NewReader(iotest.OneByteReader(strings.NewReader(text + text))), Limit: 100}
	for range 2 {
		if got, err := r.Next(); err != nil || string(got) != text[1:] {
			t.Errorf("got %s, %v", got, err)
		}
	}
}

// An error arrives as it was, as far as it travels.
func TestErrorsTravel(t *testing.T) {
	for code := yodel.Canceled; code <= yodel.Unauthenticated; code++ {
		for _, refused := range []bool{false, true} {
			for _, e := range []*yodel.Error{
				{Code: code, Message: "m", NotProcessed: refused},
				{Code: code, Message: "m", ID: "YDL2101", NotProcessed: refused},
				{Code: code, Message: "m", RetryAfter: 1500 * time.Microsecond, NotProcessed: refused, Details: []yodel.Detail{{Type: "a", Value: []byte{0, 1}}}},
			} {
				b, err := json.Marshal(objectOf(e))
				if err != nil {
					t.Fatal(err)
				}
				got := ErrorOf(b)
				same := got.Code == e.Code && got.Message == e.Message && got.ID == e.ID && got.NotProcessed == e.NotProcessed && len(got.Details) == len(e.Details)
				if wait := e.RetryAfter.Round(time.Millisecond); !same || got.RetryAfter != wait {
					t.Errorf("%s: got %+v, want %+v", b, got, e)
				}
			}
		}
	}
	many := &yodel.Error{Code: yodel.NotFound, Details: make([]yodel.Detail, maxDetails+1)}
	if o := objectOf(many); o.Data != nil {
		t.Errorf("with too many details: got %+v", o.Data)
	}
}

// Errors of other servers have a code as well.
func TestForeignErrors(t *testing.T) {
	for text, want := range map[string]yodel.Error{
		`{"code":-32700,"message":"m"}`:                            {Code: yodel.InvalidArgument, Message: "m", NotProcessed: true},
		`{"code":-32600,"message":"m","data":"x"}`:                 {Code: yodel.InvalidArgument, Message: "m", NotProcessed: true},
		`{"code":-32601,"message":"m","data":{"code":7}}`:          {Code: yodel.Unimplemented, Message: "m", NotProcessed: true},
		`{"code":-32602,"message":"m","data":{}}`:                  {Code: yodel.InvalidArgument, Message: "m"},
		`{"code":-32603,"message":"m","data":null}`:                {Code: yodel.Internal, Message: "m"},
		`{"code":-32000,"message":"m"}`:                            {Code: yodel.Unknown, Message: "m"},
		`{"code":-32017,"message":"m"}`:                            {Code: yodel.Unknown, Message: "m"},
		`{"code":5,"message":"m"}`:                                 {Code: yodel.Unknown, Message: "m"},
		`"text"`:                                                   {Code: yodel.Unknown, Message: `"text"`},
		`{"code":5,"message":"` + strings.Repeat("ä", 5000) + `"}`: {Code: yodel.Unknown, Message: strings.Repeat("ä", 2048) + "…"},
	} {
		if got := ErrorOf([]byte(text)); got.Code != want.Code || got.Message != want.Message || got.NotProcessed != want.NotProcessed {
			t.Errorf("%.100s: got %+v", text, got)
		}
	}
	for text, want := range map[string]yodel.Error{
		`"divide by zero"`:              {Code: yodel.Unknown, Message: "divide by zero"},
		`"not_found: x [YDL1]"`:         {Code: yodel.NotFound, Message: "x [YDL1]"},
		`"rpc: can't find service A.B"`: {Code: yodel.Unimplemented, Message: "rpc: can't find service A.B", NotProcessed: true},
		`{"code":1}`:                    {Code: yodel.Unknown, Message: `{"code":1}`},
	} {
		if got := ErrorOfText([]byte(text)); got.Code != want.Code || got.Message != want.Message || got.NotProcessed != want.NotProcessed {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}
