// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// addVectors gives a fuzz target the frames of the specification, cut to what it takes.
func addVectors(f *testing.F, of wire.Type, cut func(frame []byte) []byte) {
	f.Helper()
	for _, name := range []string{"frames.json", "broken.json"} {
		_, frames := readVectors(f, name)
		for i := range frames {
			if of == 0 || frames[i].header().Type == of {
				f.Add(cut(frames[i].Hex))
			}
		}
	}
}

func whole(frame []byte) []byte { return frame }

func payloadOf(frame []byte) []byte { return frame[wire.HeaderSize:] }

// unallocated runs a parser, which must not allocate.
func unallocated(t *testing.T, parse func()) {
	t.Helper()
	if allocs := testing.AllocsPerRun(1, parse); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// FuzzFrame parses anything as a frame, and appends again what was parsed.
func FuzzFrame(f *testing.F) {
	addVectors(f, 0, whole)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < wire.HeaderSize {
			return
		}
		unallocated(t, func() { _, _ = parseAll(frame) })
		h := wire.ParseHeader(frame)
		h.Len = uint32(len(frame) - wire.HeaderSize)
		payload, err := wire.Payload(frame)
		if err != nil {
			return
		}
		again := wire.Finish(append(wire.Begin(nil, &h), payload...), 0)
		if want := append(again[:4:4], frame[4:]...); h.Flags&wire.HasChecksum == 0 && !bytes.Equal(again, want) {
			t.Errorf("\n got %x\nwant %x", again, want)
		}
		if _, err := wire.Payload(again); err != nil {
			t.Errorf("the frame made again: %v", err)
		}
	})
}

// again checks that what parse makes of b, append makes bytes of that parse in the same way.
func again[T any](t *testing.T, b []byte, parse func([]byte, *T) error, appendTo func([]byte, *T) []byte) {
	t.Helper()
	var first, second T
	unallocated(t, func() { _ = parse(b, &first) })
	if parse(b, &first) != nil {
		return
	}
	compare(t, parse(appendTo(nil, &first), &second), second, first)
}

func FuzzFields(f *testing.F) {
	f.Add([]byte{})
	for _, of := range []wire.Type{wire.Request, wire.Reply} {
		addVectors(f, of, func(frame []byte) []byte {
			fields, _, err := wire.SplitFields(wire.ParseHeader(frame).Flags, frame[wire.HeaderSize:])
			if err != nil {
				return frame
			}
			return fields
		})
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > wire.MaxFields {
			return
		}
		again(t, b, wire.ParseFields, func(dst []byte, f *wire.Fields) []byte {
			block := wire.AppendFields(dst, f)
			if len(block) > wire.FieldsSize(f) {
				t.Errorf("%d bytes of fields, announced were %d", len(block), wire.FieldsSize(f))
			}
			fields, rest, err := wire.SplitFields(wire.HasFields, block)
			if err != nil || len(rest) != 0 {
				t.Errorf("split: %v, rest %x", err, rest)
			}
			if f.OnlyUsual() {
				usual := wire.AppendUsualFields(dst, f.Timeout, f.Metadata, f.Budget)
				if !bytes.Equal(usual, block) || len(usual) > wire.UsualFieldsSize(f.Metadata) {
					t.Errorf("the usual fields are %x, by themselves %x, at most %d bytes", block, usual, wire.UsualFieldsSize(f.Metadata))
				}
				if _, _, _, ok := wire.ParseUsualFields(fields); !ok {
					t.Errorf("%x are not found to be the usual fields", fields)
				}
			}
			return fields
		})
		if timeout, metadata, budget, ok := wire.ParseUsualFields(b); ok {
			var f wire.Fields
			if err := wire.ParseFields(b, &f); err != nil || !f.OnlyUsual() || f.Timeout != timeout || f.Budget != budget || !bytes.Equal(f.Metadata, metadata) {
				t.Errorf("the usual fields %d, %x are %+v, %v", timeout, metadata, f, err)
			}
		}
	})
}

func FuzzSettings(f *testing.F) {
	addVectors(f, wire.Settings, payloadOf)
	f.Add(payloadOf(wire.AppendSettings(nil, &wire.Limits{Incarnation: []byte("i"), Services: []byte("\x01a\x00\x02bc"), KeyScope: []byte("s"), Caller: []byte("c")})))
	f.Fuzz(func(t *testing.T, b []byte) {
		again(t, b, wire.ParseSettings, func(dst []byte, l *wire.Limits) []byte {
			return payloadOf(wire.AppendSettings(dst, l))
		})
	})
}

func FuzzMethod(f *testing.F) {
	addVectors(f, wire.Method, payloadOf)
	addVectors(f, wire.MethodInfo, payloadOf)
	f.Fuzz(func(t *testing.T, b []byte) {
		again(t, b, wire.ParseMethod, func(dst []byte, m *wire.Binding) []byte {
			return payloadOf(wire.AppendMethod(dst, 1, 2, m))
		})
		again(t, b, wire.ParseMethodInfo, func(dst []byte, m *wire.Info) []byte {
			return payloadOf(wire.AppendMethodInfo(dst, 1, 2, m))
		})
	})
}

func FuzzDrain(f *testing.F) {
	addVectors(f, wire.GoAway, payloadOf)
	f.Fuzz(func(t *testing.T, b []byte) {
		again(t, b, wire.ParseGoAway, func(dst []byte, d *wire.Drain) []byte {
			return payloadOf(wire.AppendGoAway(dst, 1, d))
		})
	})
}

func FuzzCredit(f *testing.F) {
	addVectors(f, wire.Credit, payloadOf)
	f.Fuzz(func(t *testing.T, b []byte) {
		again(t, b, wire.ParseCredit, func(dst []byte, w *wire.Window) []byte {
			return payloadOf(wire.AppendCredit(dst, 0, 0, w))
		})
	})
}

func FuzzPairs(f *testing.F) {
	f.Add([]byte{})
	f.Add(wire.AppendPair(wire.AppendPair(nil, "zone", "eu"), "", ""))
	f.Add([]byte("\x03key"))
	f.Add([]byte("\x03key\x05va"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		unallocated(t, func() { _ = wire.EachPair(b, func(_, _ []byte) {}) })
		var made []byte
		pairs := 0
		err := wire.EachPair(b, func(key, value []byte) {
			pairs++
			made = wire.AppendPair(made, string(key), string(value))
		})
		if err != nil {
			return
		}
		left := pairs
		if err := wire.EachPair(made, func(_, _ []byte) { left-- }); err != nil || left != 0 {
			t.Errorf("made again: %v, %d pairs too few", err, left)
		}
	})
}
