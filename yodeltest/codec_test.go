// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
)

type message struct {
	Name  string
	Score int
	Tags  []string
	Ages  map[string]int
	Next  *message
}

func sampleMessages() []any {
	text := strings.Repeat("ja ", 500)
	return []any{
		&message{Name: "one", Score: 1},
		&message{Name: text, Tags: []string{"a", "b", text}, Ages: map[string]int{"x": 1, "y": -2}, Next: &message{Name: "two"}},
	}
}

func TestRawKeepsTheContract(t *testing.T) {
	short, long := []byte("hello"), bytes.Repeat([]byte("world"), 2000)
	TestCodec(t, raw.Codec, nil, &short, &long)
}

func TestCodecComparesWithEqual(t *testing.T) {
	// Every number decodes to zero, which Equal allows.
	c := brokenCodec{decode: func([]byte, any) error { return nil }}
	opts := &CodecOptions{Equal: func(a, b any) bool { return reflect.TypeOf(a) == reflect.TypeOf(b) }}
	if err := brokenRule(t, codecRules(c, opts, sampleMessages()), "messages round-trip"); err != nil {
		t.Errorf("Equal was not asked: %v", err)
	}
}

// A brokenCodec is yodel.JSON, but for the functions that are set.
type brokenCodec struct {
	name   func() string
	append func(dst []byte, v any) ([]byte, error)
	decode func(src []byte, v any) error
}

func (c brokenCodec) Name() string {
	if c.name != nil {
		return c.name()
	}
	return "broken"
}

func (c brokenCodec) Append(dst []byte, v any) ([]byte, error) {
	if c.append != nil {
		return c.append(dst, v)
	}
	return yodel.JSON.Append(dst, v)
}

func (c brokenCodec) Decode(src []byte, v any) error {
	if c.decode != nil {
		return c.decode(src, v)
	}
	return yodel.JSON.Decode(src, v)
}

func TestCodecCatchesBrokenCodecs(t *testing.T) {
	bytesSamples := func() []any {
		one, two := []byte("first"), bytes.Repeat([]byte("second"), 100)
		return []any{&one, &two}
	}
	tests := []struct {
		name    string
		codec   yodel.Codec
		samples []any
		rule    string // that the codec breaks
	}{
		{"no name", brokenCodec{name: func() string { return "" }}, sampleMessages(), "the name is stable"},
		{"counting name", countingName(), sampleMessages(), "the name is stable"},
		{"loses a field", losesField(), sampleMessages(), "messages round-trip"},
		{"cannot be used twice", worksOnce(), sampleMessages(), "messages round-trip"},
		{"panics when it encodes", brokenCodec{append: func([]byte, any) ([]byte, error) { panic("oops") }}, sampleMessages(), "messages round-trip"},
		{"values unlike pointers", valuesDiffer(), sampleMessages(), "values are taken like pointers"},
		{"ignores dst", brokenCodec{append: func(_ []byte, v any) ([]byte, error) { return json.Marshal(v) }}, sampleMessages(), "append extends dst"},
		{"overwrites dst", brokenCodec{append: func(dst []byte, v any) ([]byte, error) { return yodel.JSON.Append(dst[:0], v) }}, sampleMessages(), "append extends dst"},
		{"drops what dst has room for", usesRoom(), sampleMessages(), "append extends dst"},
		{"encodes into a buffer of its own", sharedBuffer(), sampleMessages(), "append keeps neither dst nor v"},
		{"returns the message's memory", aliasingAppend(), bytesSamples(), "append keeps neither dst nor v"},
		{"keeps src", aliasingDecode(), bytesSamples(), "decode does not keep src"},
		{"writes to src", scribbling(), sampleMessages(), "decode does not keep src"},
		{"merges", brokenCodec{decode: json.Unmarshal}, sampleMessages(), "decode replaces what v held"},
		{"ignores what follows", brokenCodec{decode: func(src []byte, v any) error { return json.NewDecoder(bytes.NewReader(src)).Decode(v) }}, sampleMessages(), "decode takes the whole of src"},
		{"encodes what it cannot", brokenCodec{append: appendAnything}, sampleMessages(), "wrong types are errors"},
		{"decodes into nothing", brokenCodec{decode: decodeAnything}, sampleMessages(), "wrong types are errors"},
		{"panics at nil", brokenCodec{decode: panicsAtNil}, sampleMessages(), "wrong types are errors"},
		{"panics at short bytes", brokenCodec{decode: panicsAtShort}, sampleMessages(), "hostile bytes are errors"},
		{"trusts a length", lengthPrefixed{}, bytesSamples(), "hostile bytes are errors"},
		{"breaks after an error", breaksAfterError(), sampleMessages(), "an error leaves nothing behind"},
		{"mixes up calls", mixesUp(), sampleMessages()[:1], "use is concurrent"},
		{"panics in concurrent use", brokenCodec{append: func([]byte, any) ([]byte, error) { panic("oops") }}, sampleMessages(), "use is concurrent"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := brokenRule(t, codecRules(test.codec, nil, test.samples), test.rule)
			if err == nil {
				t.Fatalf("the rule %q did not catch it", test.rule)
			}
			t.Logf("caught: %.200v", err)
		})
	}
}

// brokenRule returns how the named one of rules is broken.
func brokenRule(t *testing.T, rules []rule, name string) error {
	t.Helper()
	for _, r := range rules {
		if r.name == name {
			return r.broken()
		}
	}
	t.Fatalf("there is no rule %q", name)
	return nil
}

func countingName() yodel.Codec {
	n := 0
	return brokenCodec{name: func() string { n++; return fmt.Sprint("codec", n) }}
}

func losesField() yodel.Codec {
	return brokenCodec{decode: func(src []byte, v any) error {
		err := json.Unmarshal(src, v)
		v.(*message).Tags = nil
		return err
	}}
}

func worksOnce() yodel.Codec {
	used := false
	return brokenCodec{append: func(dst []byte, v any) ([]byte, error) {
		if used {
			return append(dst, "{}"...), nil
		}
		used = true
		return yodel.JSON.Append(dst, v)
	}}
}

func valuesDiffer() yodel.Codec {
	return brokenCodec{append: func(dst []byte, v any) ([]byte, error) {
		if _, ok := v.(message); ok {
			return append(dst, "{}"...), nil
		}
		return yodel.JSON.Append(dst, v)
	}}
}

// usesRoom goes by the capacity of dst where it should go by the length.
func usesRoom() yodel.Codec {
	return brokenCodec{append: func(dst []byte, v any) ([]byte, error) {
		if cap(dst) > 1<<16 {
			dst = dst[:len(dst)+1]
		}
		return yodel.JSON.Append(dst, v)
	}}
}

func sharedBuffer() yodel.Codec {
	buffer := make([]byte, 0, 1<<16)
	return brokenCodec{append: func(dst []byte, v any) ([]byte, error) {
		if len(dst) > 0 {
			return yodel.JSON.Append(dst, v)
		}
		return yodel.JSON.Append(buffer[:0], v)
	}}
}

func aliasingAppend() yodel.Codec {
	return brokenCodec{decode: raw.Codec.Decode, append: func(dst []byte, v any) ([]byte, error) {
		if p, ok := v.(*[]byte); ok && dst == nil {
			return *p, nil
		}
		return raw.Codec.Append(dst, v)
	}}
}

func aliasingDecode() yodel.Codec {
	return brokenCodec{append: raw.Codec.Append, decode: func(src []byte, v any) error {
		*v.(*[]byte) = src
		return nil
	}}
}

func scribbling() yodel.Codec {
	return brokenCodec{decode: func(src []byte, v any) error {
		err := yodel.JSON.Decode(src, v)
		src[0] = '['
		return err
	}}
}

func appendAnything(dst []byte, v any) ([]byte, error) {
	if b, err := yodel.JSON.Append(dst, v); err == nil {
		return b, nil
	}
	return append(dst, "{}"...), nil
}

func decodeAnything(src []byte, v any) error {
	if err := yodel.JSON.Decode(src, v); !errors.As(err, new(*json.InvalidUnmarshalError)) {
		return err
	}
	return nil
}

func panicsAtNil(src []byte, v any) error {
	if err := yodel.JSON.Decode(src, v); errors.As(err, new(*json.InvalidUnmarshalError)) {
		panic(err)
	}
	return nil
}

func panicsAtShort(src []byte, v any) error {
	_ = src[1]
	return yodel.JSON.Decode(src, v)
}

// lengthPrefixed is a codec for []byte that allocates what a length of three bytes says before it
// looks.
type lengthPrefixed struct{}

func (lengthPrefixed) Name() string { return "lengthprefixed" }

func (lengthPrefixed) Append(dst []byte, v any) ([]byte, error) {
	b := *v.(*[]byte)
	return append(append(dst, byte(len(b)>>16), byte(len(b)>>8), byte(len(b))), b...), nil
}

func (lengthPrefixed) Decode(src []byte, v any) error {
	if len(src) < 3 {
		return errors.New("short")
	}
	b := make([]byte, int(src[0])<<16|int(src[1])<<8|int(src[2]))
	if copy(b, src[3:]) < len(b) {
		return errors.New("short")
	}
	*v.(*[]byte) = b
	return nil
}

func breaksAfterError() yodel.Codec {
	var failed error
	return brokenCodec{decode: func(src []byte, v any) error {
		if failed == nil {
			failed = yodel.JSON.Decode(src, v)
		}
		return failed
	}}
}

// mixesUp keeps what it encodes where every call sees it. It locks, so that the suite has to catch
// it and not the race detector.
func mixesUp() yodel.Codec {
	var mu sync.Mutex
	var current []byte
	return brokenCodec{append: func(dst []byte, v any) ([]byte, error) {
		b, err := json.Marshal(v)
		mu.Lock()
		current = b
		mu.Unlock()
		for range 100 {
			runtime.Gosched()
		}
		mu.Lock()
		defer mu.Unlock()
		return append(dst, current...), err
	}}
}
