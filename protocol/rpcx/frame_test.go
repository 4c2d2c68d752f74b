// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// goldenFrames were recorded from clients and servers of rpcx 1.9.4.
var goldenFrames = []struct {
	name    string
	hex     string
	head    head
	payload string
}{
	{
		"a request with metadata", "0800001000000000000000010000002f000000054172697468000000034d756c0000000a000000016b00000001760000000d7b2241223a322c2242223a337d",
		head{serialize: 1, seq: 1, path: "Arith", method: "Mul", metadata: pairsOf("k", "v"), pairs: 1}, `{"A":2,"B":3}`,
	},
	{
		"a request in JSON", "08000010000000000000000000000025000000054172697468000000034d756c000000000000000d7b2241223a322c2242223a337d",
		head{serialize: 1, path: "Arith", method: "Mul"}, `{"A":2,"B":3}`,
	},
	{
		"its reply", "0800801000000000000000000000001f000000054172697468000000034d756c00000000000000077b2243223a367d",
		head{flags: response, serialize: 1, path: "Arith", method: "Mul"}, `{"C":6}`,
	},
	{
		"an error beside a reply", "0800811000000000000000010000003a000000054172697468000000044661696c0000001a0000000e5f5f727063785f6572726f725f5f00000004626f6f6d000000077b2243223a307d",
		head{flags: response | failed, serialize: 1, seq: 1, path: "Arith", method: "Fail", metadata: pairsOf(rpcxwire.KeyError, "boom"), pairs: 1}, `{"C":0}`,
	},
	{
		"an unknown method", "0800811000000000000000020000004b000000054172697468000000044e6f7065000000320000000e5f5f727063785f6572726f725f5f0000001c727063783a2063616e27742066696e64206d6574686f64204e6f706500000000",
		head{flags: response | failed, serialize: 1, seq: 2, path: "Arith", method: "Nope", metadata: pairsOf(rpcxwire.KeyError, rpcxwire.NoMethod+"Nope"), pairs: 1}, "",
	},
	{
		"an unknown service", "0800811000000000000000030000004a000000044e6f7065000000034d756c000000330000000e5f5f727063785f6572726f725f5f0000001d727063783a2063616e27742066696e642073657276696365204e6f706500000000",
		head{flags: response | failed, serialize: 1, seq: 3, path: "Nope", method: "Mul", metadata: pairsOf(rpcxwire.KeyError, rpcxwire.NoService+"Nope"), pairs: 1}, "",
	},
	{
		"a one-way call", "08002010000000000000000400000025000000054172697468000000034d756c000000000000000d7b2241223a322c2242223a337d",
		head{flags: oneWay, serialize: 1, seq: 4, path: "Arith", method: "Mul"}, `{"A":2,"B":3}`,
	},
	{
		"a heartbeat", "0800403000000000000000050000001900000000000000000000000000000009d317979cfe362a0000",
		head{flags: heartbeat, serialize: 3, seq: 5}, "\xd3\x17\x97\x9c\xfe\x36\x2a\x00\x00",
	},
	{
		"the answer to a heartbeat", "0800c03000000000000000050000001900000000000000000000000000000009d317979cfe362a0000",
		head{flags: response | heartbeat, serialize: 3, seq: 5}, "\xd3\x17\x97\x9c\xfe\x36\x2a\x00\x00",
	},
	{
		"a request in MessagePack", "0800003000000000000000000000001f000000054172697468000000034d756c000000000000000782a14102a14203",
		head{serialize: 3, path: "Arith", method: "Mul"}, "\x82\xa1A\x02\xa1B\x03",
	},
	{
		"a request of bytes", "0800000000000000000000000000001b000000054172697468000000044563686f00000000000000026869",
		head{path: "Arith", method: "Echo"}, "hi",
	},
	{
		"a compressed request", "0800040000000000000000000000003e000000054172697468000000044563686f00000000000000251f8b08000000000000ff4a1c05a360148c5c00000000ffff010000fffffce0765a01040000",
		head{flags: gzipped, path: "Arith", method: "Echo"},
		"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x4a\x1c\x05\xa3\x60\x14\x8c\x5c\x00\x00\x00\x00\xff\xff\x01\x00\x00\xff\xff\xfc\xe0\x76\x5a\x01\x04\x00\x00",
	},
	{
		"an unknown codec", "08008190000000000000000700000046000000054172697468000000034d756c0000002e0000000e5f5f727063785f6572726f725f5f0000001863616e206e6f742066696e6420636f64656320666f72203900000000",
		head{flags: response | failed, serialize: 9, seq: 7, path: "Arith", method: "Mul", metadata: pairsOf(rpcxwire.KeyError, rpcxwire.NoCodec+"9"), pairs: 1}, "",
	},
	{
		"a call with authorization", "08000010000000000000000000000036000000054172697468000000034d756c00000011000000065f5f41555448000000036261640000000d7b2241223a322c2242223a337d",
		head{serialize: 1, path: "Arith", method: "Mul", metadata: pairsOf(rpcxwire.KeyAuth, "bad"), pairs: 1}, `{"A":2,"B":3}`,
	},
	{
		"a call with a deadline", "08000010000000000000000000000040000000054172697468000000034d756c0000001b0000000f5f5f53657276657254696d656f757400000004343939390000000d7b2241223a322c2242223a337d",
		head{serialize: 1, path: "Arith", method: "Mul", metadata: pairsOf(rpcxwire.KeyTimeout, "4999"), pairs: 1}, `{"A":2,"B":3}`,
	},
	{
		"a pushed message", "0800200000000000000000010000002700000005746f706963000000036576740000000a000000016b00000001760000000568656c6c6f",
		head{flags: oneWay, seq: 1, path: "topic", method: "evt", metadata: pairsOf("k", "v"), pairs: 1}, "hello",
	},
}

func pairsOf(texts ...string) string {
	var b []byte
	for pair := range slices.Chunk(texts, 2) {
		b = appendPair(b, pair[0], pair[1])
	}
	return string(b)
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readerOf(r io.Reader) *frameReader {
	return &frameReader{Reader: bufio.NewReaderSize(r, 32<<10), maxMetadata: 16 << 10, maxPairs: 128}
}

func TestGoldenFrames(t *testing.T) {
	for _, golden := range goldenFrames {
		t.Run(golden.name, func(t *testing.T) {
			frame := unhex(t, golden.hex)
			want := golden.head
			want.payload = len(golden.payload)
			if got := append(want.append(nil), golden.payload...); !bytes.Equal(got, frame) {
				t.Errorf("wrote %x", got)
			}
			r := readerOf(iotest.OneByteReader(bytes.NewReader(frame)))
			got, err := r.next()
			if err != nil || *got != want {
				t.Fatalf("read %+v, %v, want %+v", got, err, want)
			}
			if body, err := r.body(got.payload); err != nil || string(body) != golden.payload {
				t.Errorf("read %q, %v", body, err)
			}
			if _, err = r.next(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("after the last frame: %v", err)
			}
			for n := 1; n < len(frame); n++ {
				r := readerOf(bytes.NewReader(frame[:n]))
				h, err := r.next()
				if err == nil {
					_, err = r.body(h.payload)
				}
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("the first %d bytes: %v", n, err)
				}
			}
		})
	}
}

// Frames that rpcx accepts, or on which it panics.
func TestMalformedFrames(t *testing.T) {
	good := unhex(t, goldenFrames[0].hex)
	const path, method, metadata, key, payload = 16, 25, 32, 36, 46
	for name, test := range map[string]struct {
		at   int
		size uint32
		want error
	}{
		"another magic":                 {0, 0x09000010, errMagic},
		"a total that is too small":     {12, 15, errLengths},
		"a total that is 1 less":        {12, 0x2e, errLengths},
		"a total that is 1 more":        {12, 0x30, errLengths},
		"a path that is too long":       {path, 1 << 31, errLengths},
		"a path over the method":        {path, 40, errLengths},
		"a method that is too long":     {method, 1<<32 - 1, errLengths},
		"metadata that is too long":     {metadata, 28, errLengths},
		"a key that is too long":        {key, 7, errPairs},
		"a value that is missing":       {key, 6, errPairs},
		"a key of 4 GiB":                {key, 1<<32 - 1, errPairs},
		"a payload that is too long":    {payload - 0, 14, errLengths},
		"a payload that is too short":   {payload - 0, 2, errLengths},
		"a payload of 4 GiB":            {payload - 0, 1<<32 - 1, errLengths},
		"a path whose end is elsewhere": {path, 4, errLengths},
	} {
		t.Run(name, func(t *testing.T) {
			frame := bytes.Clone(good)
			binary.BigEndian.PutUint32(frame[test.at:], test.size)
			if h, err := readerOf(bytes.NewReader(frame)).next(); !errors.Is(err, test.want) {
				t.Errorf("got %+v, %v, want %v", h, err, test.want)
			}
		})
	}
	t.Run("a name that is too long", func(t *testing.T) {
		h := head{path: strings.Repeat("x", maxName+1)}
		if _, err := readerOf(bytes.NewReader(h.append(nil))).next(); err == nil || !strings.Contains(err.Error(), "4097") {
			t.Errorf("got %v", err)
		}
	})
}

// Memory for a payload is not allocated before the payload arrives.
func TestPayloadThatDoesNotArrive(t *testing.T) {
	r := readerOf(strings.NewReader(strings.Repeat("x", 100<<10)))
	var err error
	allocated := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			r.Reset(strings.NewReader(strings.Repeat("x", 100<<10)))
			_, err = r.body(1 << 30)
		}
	}).AllocedBytesPerOp()
	if !errors.Is(err, io.ErrUnexpectedEOF) || allocated > 1<<20 {
		t.Errorf("got %v after %d bytes were allocated", err, allocated)
	}
}

// Metadata beyond the limits is skipped, so that the rest of the connection can be read.
func TestLimitsOfMetadata(t *testing.T) {
	many := strings.Repeat(pairsOf("k", ""), 129)
	for name, metadata := range map[string]string{"many pairs": many, "a large value": pairsOf("k", strings.Repeat("x", 20<<10))} {
		t.Run(name, func(t *testing.T) {
			first := head{path: "A", method: "B", metadata: metadata, payload: 3}
			second := head{path: "C", method: "D"}
			r := readerOf(bytes.NewReader(second.append(append(first.append(nil), "xyz"...))))
			h, err := r.next()
			if err != nil || h.excess == "" || h.metadata != "" || h.payload != 3 {
				t.Fatalf("got %+v, %v", h, err)
			}
			if err = r.skip(3); err != nil {
				t.Fatal(err)
			}
			if h, err = r.next(); err != nil || h.name() != "C.D" {
				t.Errorf("got %+v, %v", h, err)
			}
		})
	}
}

func FuzzFrames(f *testing.F) {
	for _, golden := range goldenFrames {
		f.Add(unhex(f, golden.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := readerOf(bytes.NewReader(b))
		for range b {
			h, err := r.next()
			if err != nil {
				return
			}
			body, err := r.body(h.payload)
			if err != nil {
				return
			}
			if h.excess != "" {
				continue
			}
			again := readerOf(bytes.NewReader(append(h.append(nil), body...)))
			if same, err := again.next(); err != nil || *same != *h {
				t.Fatalf("%+v becomes %+v, %v", h, same, err)
			}
			rpcxwire.Describe(newCall(), h.all(), h.pairs, start)
		}
	})
}
