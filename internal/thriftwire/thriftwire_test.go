// SPDX-License-Identifier: Apache-2.0

package thriftwire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/yodel-rpc/yodel/internal/leak"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
)

func TestMain(m *testing.M) { leak.Verify(m) }

func fromHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var headers = map[string]struct {
	bytes  string
	header thriftwire.Header
}{
	"binary":     {"80010001 00000003 61646400 000007", thriftwire.Header{Type: thriftwire.Call, Seq: 7, Name: "add"}},
	"not strict": {"00000003 616464 04 ffffffff", thriftwire.Header{NotStrict: true, Type: thriftwire.OneWay, Seq: -1, Name: "add"}},
	"compact":    {"8221 07 03 616464", thriftwire.Header{Format: thriftwire.Compact, Type: thriftwire.Call, Seq: 7, Name: "add"}},
	"exception":  {"8261 ffffffff0f 00", thriftwire.Header{Format: thriftwire.Compact, Type: thriftwire.Exception, Seq: -1}},
}

func TestHeaders(t *testing.T) {
	for name, test := range headers {
		want := fromHex(t, test.bytes)
		if got := thriftwire.AppendHeader(nil, &test.header); !bytes.Equal(got, want) {
			t.Errorf("%s: got %x, want %x", name, got, want)
		}
		r := thriftwire.Reader{Bytes: want}
		if got, err := r.Header(3); err != nil || got != test.header || r.At != len(want) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
		for n := range want {
			r := thriftwire.Reader{Bytes: want[:n]}
			if _, err := r.Header(3); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes: got %v", name, n, err)
			}
		}
	}
	for name, b := range map[string]string{
		"long name": "80010001 00000004 61646464 00000001", "negative name": "80010001 ffffffff", "version": "80020001 00000000 00000000",
		"compact version": "8222 01 00", "long compact name": "8221 01 04 61616161", "long number": "8221 ffffffffffffffffffff01",
	} {
		r := thriftwire.Reader{Bytes: fromHex(t, b)}
		if _, err := r.Header(3); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A struct with every type, in both formats.
var structs = map[thriftwire.Format]string{
	thriftwire.Binary: "020001 01 030002 07 040003 0000000000000000 060004 0001 080005 00000001 0a0006 0000000000000001 0b0007 00000002 6869" +
		"0c0008 020001 00 00 0d0009 0b02 00000001 00000001 61 01 0e000a 0c 00000002 00 00 0f000b 0f 00000001 08 00000002 00000001 00000002 10000c" + strings.Repeat("00", 16) + "00",
	thriftwire.Compact: "11 13 07 17 0000000000000000 14 02 15 02 16 02 18 02 6869 1c 12 00 1b 01 81 01 61 01 1a 2c 00 00 19 19 25 02 04 1d" + strings.Repeat("00", 16) + "00",
}

func TestSkipFromMemoryAndFromSource(t *testing.T) {
	for format, text := range structs {
		b := fromHex(t, text)
		r := thriftwire.Reader{Format: format, Bytes: b}
		if err := r.Skip(thriftwire.Struct, 0); err != nil || r.At != len(b) {
			t.Errorf("%v: stopped at %d of %d: %v", format, r.At, len(b), err)
		}
		for n := range b {
			r := thriftwire.Reader{Format: format, Bytes: b[:n]}
			if err := r.Skip(thriftwire.Struct, 0); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%v, %d bytes: got %v", format, n, err)
			}
		}
		reserved := 0
		s := thriftwire.Source{From: iotest.OneByteReader(bytes.NewReader(append(b, "next"...))), Limit: len(b), Reserve: func(n int) bool { reserved += n; return true }}
		s.Attach(&r)
		r.Format = format
		if err := r.Skip(thriftwire.Struct, 0); err != nil || !bytes.Equal(r.Bytes, b) || s.Fault() != nil || reserved != s.Reserved() || reserved != cap(r.Bytes) {
			t.Errorf("%v: got %x, %v, %v, and reserved %d for %d", format, r.Bytes, err, s.Fault(), reserved, cap(r.Bytes))
		}
	}
}

// Fields gives each field as a value that stands alone, and AppendFieldOf makes the same field of
// it.
func TestFields(t *testing.T) {
	for format, text := range structs {
		b := fromHex(t, text)
		var again []byte
		last, n := int16(0), 0
		r := thriftwire.Reader{Format: format, Bytes: bytes.Clone(b)}
		err := r.Fields(func(id int16, _ thriftwire.Type, encoded []byte) (err error) {
			n++
			again, err = thriftwire.AppendFieldOf(again, format, encoded, id, last)
			last = id
			return err
		})
		if again = append(again, 0); err != nil || n != 12 || !bytes.Equal(again, b) {
			t.Errorf("%v: %d fields, %v\n got %x\nwant %x", format, n, err, again, b)
		}
		r = thriftwire.Reader{Format: format, Bytes: append(bytes.Clone(b), 1)}
		if err := r.Fields(func(int16, thriftwire.Type, []byte) error { return nil }); err == nil {
			t.Errorf("%v: a byte behind the struct was ignored", format)
		}
		for _, bad := range [][]byte{nil, {format.ArgsMark(), 0}} {
			if _, err := thriftwire.AppendFieldOf(nil, format, bad, 1, 0); err == nil {
				t.Errorf("%v: no error for %x", format, bad)
			}
		}
	}
}

// A Source that has no room discards the message, and the Reader still finds its end.
func TestSourceLimits(t *testing.T) {
	long := append(fromHex(t, "0b0001 00004e20"), make([]byte, 20_000)...)
	message := append(append(long, long...), 0)
	for name, test := range map[string]struct {
		limit, room int
		want, fails error
	}{
		"enough":       {50_000, 100_000, nil, nil},
		"too large":    {20_000, 100_000, thriftwire.ErrTooLarge, nil},
		"no memory":    {50_000, 10_000, thriftwire.ErrMemory, nil},
		"far too long": {5_000, 100_000, thriftwire.ErrTooLarge, thriftwire.ErrTooLarge},
	} {
		from := bytes.NewReader(append(message, "next"...))
		most := 0
		s := thriftwire.Source{From: from, Limit: test.limit, Reserve: func(n int) bool {
			if most+n > test.room {
				return false
			}
			most += n
			return true
		}}
		var r thriftwire.Reader
		s.Attach(&r)
		err := r.Skip(thriftwire.Struct, 0)
		if !errors.Is(err, test.fails) || s.Fault() != test.want || cap(r.Bytes) > max(most, 2*4096) {
			t.Errorf("%s: got %v, %v, and %d bytes of memory for %d", name, err, s.Fault(), cap(r.Bytes), most)
		}
		if err == nil && from.Len() != len("next") {
			t.Errorf("%s: %d bytes are left, want 4", name, from.Len())
		}
	}
}

// FuzzSkip checks that reading from memory and from a Source agree.
func FuzzSkip(f *testing.F) {
	for _, text := range structs {
		f.Add(fromHex(f, text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for format := range structs {
			r := thriftwire.Reader{Format: format, Bytes: b}
			err := r.Skip(thriftwire.Struct, 0)
			var streamed thriftwire.Reader
			s := thriftwire.Source{From: bytes.NewReader(b), Limit: 1 << 20}
			s.Attach(&streamed)
			streamed.Format = format
			if other := streamed.Skip(thriftwire.Struct, 0); (err == nil) != (other == nil) {
				t.Fatalf("%v: %v from memory, %v from a source", format, err, other)
			}
			if err == nil && !bytes.Equal(streamed.Bytes, b[:r.At]) {
				t.Fatalf("%v: captured %x, want %x", format, streamed.Bytes, b[:r.At])
			}
		}
	})
}

func FuzzHeader(f *testing.F) {
	for _, h := range headers {
		f.Add(fromHex(f, h.bytes))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := thriftwire.Reader{Bytes: b}
		h, err := r.Header(1000)
		if err != nil {
			return
		}
		again := thriftwire.Reader{Bytes: thriftwire.AppendHeader(nil, &h)}
		if h.Type > 7 {
			return // it has no form in the compact protocol
		}
		if back, err := again.Header(1000); err != nil || back != h {
			t.Fatalf("%+v became %+v, %v", h, back, err)
		}
	})
}
