// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// The vectors in spec/vectors are the protocol in bytes, for every language. They were made by
// another program than the one that is tested here.

const vectorFolder = "../../spec/vectors/"

// A vector is one frame.
type vector struct {
	Name       string
	Type       frameType
	Flags      []string
	Arg        uint16
	ID         uint32
	Fields     map[string]value
	Body       value
	Attachment *value
	Piece      value
	Payload    value
	Where      string // of a broken one: the part that is
	Error      string // and why
	Hex        hexBytes
}

// A frameType is a name, or the number of a frame that this version does not know.
type frameType wire.Type

// A value is a number, or bytes.
type value struct {
	number uint64
	bytes  []byte
}

type hexBytes []byte

var typeNames = map[string]wire.Type{
	"Settings": wire.Settings, "Method": wire.Method, "MethodInfo": wire.MethodInfo, "Request": wire.Request, "Reply": wire.Reply,
	"Cancel": wire.Cancel, "Data": wire.Data, "Credit": wire.Credit, "Ping": wire.Ping, "Pong": wire.Pong, "GoAway": wire.GoAway,
}

var flagNames = map[string]wire.Flags{
	"HasFields": wire.HasFields, "More": wire.More, "HasAttachment": wire.HasAttachment, "Compressed": wire.Compressed,
	"HasChecksum": wire.HasChecksum, "OfReply": wire.OfReply, "End": wire.End, "OneWay": wire.OneWay, "NotProcessed": wire.NotProcessed,
	"Waited": wire.Waited,
}

func (t *frameType) UnmarshalJSON(b []byte) error {
	var name string
	if json.Unmarshal(b, &name) != nil {
		return json.Unmarshal(b, (*uint8)(t))
	}
	known, ok := typeNames[name]
	if !ok {
		return fmt.Errorf("no frame is called %q", name)
	}
	*t = frameType(known)
	return nil
}

func (v *value) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &v.number) == nil {
		return nil
	}
	var text string
	if json.Unmarshal(b, &text) == nil {
		v.bytes = []byte(text)
		return nil
	}
	var structured struct {
		Hex   hexBytes
		Pairs [][2]string
		List  []string
	}
	err := json.Unmarshal(b, &structured)
	v.bytes = structured.Hex
	for _, name := range structured.List {
		v.bytes = wire.AppendService(v.bytes, name)
	}
	for _, pair := range structured.Pairs {
		v.bytes = wire.AppendPair(v.bytes, pair[0], pair[1])
	}
	return err
}

func (h *hexBytes) UnmarshalJSON(b []byte) error {
	var text string
	err := json.Unmarshal(b, &text)
	if err == nil {
		*h, err = hex.DecodeString(text)
	}
	return err
}

func (v *vector) flags() (flags wire.Flags) {
	for _, name := range v.Flags {
		flags |= flagNames[name]
	}
	return flags
}

func (v *vector) header() wire.Header {
	return wire.Header{Type: wire.Type(v.Type), Flags: v.flags(), Arg: v.Arg, ID: v.ID}
}

// number returns a field, which is a text when it has more than the 53 bits that JSON is sure of.
func (v *vector) number(name string) uint64 {
	f := v.Fields[name]
	if f.bytes != nil {
		_, _ = fmt.Sscan(string(f.bytes), &f.number) // a wrong one is 0, and fails the test
	}
	return f.number
}

func (v *vector) bytes(name string) []byte { return v.Fields[name].bytes }

func (v *vector) settings() wire.Limits {
	return wire.Limits{
		MaxFrame: v.number("max_frame"), MaxMessage: v.number("max_message"), MaxOpen: v.number("max_open"),
		MaxOpenBytes: v.number("max_open_bytes"), StreamWindow: v.number("stream_window"), MaxMethods: v.number("max_methods"),
		Metadata: v.bytes("metadata"), Agent: v.bytes("agent"),
		Incarnation: v.bytes("incarnation"), Services: v.bytes("services"), KeyScope: v.bytes("key_scope"), KeyKeep: v.number("key_keep"),
		Caller: v.bytes("caller"),
	}
}

func (v *vector) method() wire.Binding {
	return wire.Binding{
		Name: v.bytes("name"), Codec: v.bytes("codec"), Compressor: v.bytes("compressor"), Kind: v.number("kind"),
		Positional: v.number("positional"), Idempotent: v.number("idempotent"), Schema: v.bytes("schema"),
	}
}

func (v *vector) methodInfo() wire.Info {
	return wire.Info{Known: v.number("known"), Kind: v.number("kind"), Idempotent: v.number("idempotent")}
}

func (v *vector) goAway() wire.Drain {
	return wire.Drain{Count: v.number("count"), Message: v.bytes("message"), ErrorID: v.bytes("error_id"), Again: v.number("again")}
}

func (v *vector) credit() wire.Window {
	return wire.Window{MaxOpen: v.number("max_open"), MaxOpenBytes: v.number("max_open_bytes"), StreamBytes: v.number("stream_bytes")}
}

func (v *vector) fields() wire.Fields {
	return wire.Fields{
		Size: v.number("size"), Metadata: v.bytes("metadata"), Timeout: v.number("timeout"), Attempt: v.number("attempt"),
		Budget: v.number("budget"), IdempotencyKey: v.bytes("idempotency_key"), Criticality: v.number("criticality"),
		Tenant: v.bytes("tenant"), Trace: v.bytes("trace"), Key: v.bytes("key"), Epoch: v.number("epoch"),
		Explain: v.number("explain"), Message: v.bytes("message"), ErrorID: v.bytes("error_id"), Details: v.bytes("details"),
		RetryAfter: v.number("retry_after"), Load: v.number("load"), ServerTime: v.number("server_time"),
		Parent: v.number("parent"), ServerWait: v.number("server_wait"), KeyBegan: v.number("key_began"), Header: v.bytes("header"),
	}
}

// message returns what stands behind the fields.
func (v *vector) message() []byte {
	if v.Piece.bytes != nil {
		return v.Piece.bytes
	}
	if v.Attachment == nil {
		return v.Body.bytes
	}
	length := []byte{byte(len(v.Body.bytes))}
	if len(v.Body.bytes) >= 0x80 {
		length = []byte{byte(len(v.Body.bytes)) | 0x80, byte(len(v.Body.bytes) >> 7)}
	}
	return slices.Concat(length, v.Body.bytes, v.Attachment.bytes)
}

func readVectors(t testing.TB, name string) (preface []byte, frames []vector) {
	t.Helper()
	text, err := os.ReadFile(vectorFolder + name)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		About   string
		Preface hexBytes
		Frames  []vector
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(file.Frames) == 0 {
		t.Fatalf("%s has no frames", name)
	}
	return file.Preface, file.Frames
}

// appendVector makes the frame that a vector describes.
func appendVector(dst []byte, v *vector) []byte {
	switch wire.Type(v.Type) {
	case wire.Settings:
		l := v.settings()
		return wire.AppendSettings(dst, &l)
	case wire.Method:
		m := v.method()
		return wire.AppendMethod(dst, v.Arg, v.ID, &m)
	case wire.MethodInfo:
		m := v.methodInfo()
		return wire.AppendMethodInfo(dst, v.Arg, v.ID, &m)
	case wire.GoAway:
		d := v.goAway()
		return wire.AppendGoAway(dst, v.Arg, &d)
	case wire.Credit:
		w := v.credit()
		return wire.AppendCredit(dst, v.flags(), v.ID, &w)
	case wire.Request, wire.Reply, wire.Data:
		start := len(dst)
		h := v.header()
		dst = wire.Begin(dst, &h)
		if v.flags()&wire.HasFields != 0 {
			f := v.fields()
			dst = wire.AppendFields(dst, &f)
		}
		return wire.Finish(append(dst, v.message()...), start)
	default:
		start := len(dst)
		h := v.header()
		dst = wire.Begin(dst, &h)
		return wire.Finish(append(dst, v.Payload.bytes...), start)
	}
}

func TestPrefaceIsThatOfTheSpecification(t *testing.T) {
	preface, _ := readVectors(t, "frames.json")
	if string(preface) != wire.Preface {
		t.Errorf("got preface %x, want %x", wire.Preface, preface)
	}
}

func TestFramesAreAppendedAsSpecified(t *testing.T) {
	_, frames := readVectors(t, "frames.json")
	for i := range frames {
		v := &frames[i]
		const before = "what was there"
		if got := appendVector([]byte(before), v); string(got) != before+string(v.Hex) {
			t.Errorf("%s:\n got %x\nwant %x", v.Name, got[min(len(got), len(before)):], []byte(v.Hex))
		}
	}
}

func TestFramesAreParsedAsSpecified(t *testing.T) {
	_, frames := readVectors(t, "frames.json")
	for i := range frames {
		v := &frames[i]
		t.Run(v.Name, func(t *testing.T) { parseVector(t, v) })
	}
}

func parseVector(t *testing.T, v *vector) {
	want := v.header()
	want.Len = uint32(len(v.Hex) - wire.HeaderSize)
	h := wire.ParseHeader(v.Hex)
	if h != want {
		t.Errorf("got header %+v, want %+v", h, want)
	}
	payload, err := wire.Payload(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	switch h.Type {
	case wire.Settings:
		var got wire.Limits
		compare(t, wire.ParseSettings(payload, &got), got, v.settings())
	case wire.Method:
		var got wire.Binding
		compare(t, wire.ParseMethod(payload, &got), got, v.method())
	case wire.MethodInfo:
		var got wire.Info
		compare(t, wire.ParseMethodInfo(payload, &got), got, v.methodInfo())
	case wire.GoAway:
		var got wire.Drain
		compare(t, wire.ParseGoAway(payload, &got), got, v.goAway())
	case wire.Credit:
		var got wire.Window
		compare(t, wire.ParseCredit(payload, &got), got, v.credit())
	case wire.Request, wire.Reply, wire.Data:
		fields, message, err := wire.SplitFields(h.Flags, payload)
		if err != nil {
			t.Fatal(err)
		}
		var got wire.Fields
		compare(t, wire.ParseFields(fields, &got), got, v.fields())
		if v.Piece.bytes != nil {
			compare(t, nil, message, v.Piece.bytes)
			return
		}
		body, attachment, err := wire.SplitBody(h.Flags, message)
		compare(t, err, body, v.Body.bytes)
		if v.Attachment != nil {
			compare(t, nil, attachment, v.Attachment.bytes)
		} else if attachment != nil {
			t.Errorf("got attachment %q, want none", attachment)
		}
	default:
		compare(t, nil, payload, v.Payload.bytes)
	}
}

// compare compares what was parsed with what stands in the vector. Empty and absent bytes are the
// same.
func compare[T any](t *testing.T, err error, got, want T) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("\n got %s\nwant %s", g, w)
	}
}

var errorNames = map[string]error{"truncated": wire.ErrTruncated, "varint": wire.ErrVarint, "checksum": wire.ErrChecksum, "bounds": wire.ErrBounds}

func TestBrokenFramesAreRefusedAsSpecified(t *testing.T) {
	_, frames := readVectors(t, "broken.json")
	for i := range frames {
		v := &frames[i]
		if where, err := parseAll(v.Hex); where != v.Where || err != errorNames[v.Error] {
			t.Errorf("%s: got error %v in %q, want %v in %q", v.Name, err, where, errorNames[v.Error], v.Where)
		}
	}
}

// parseAll parses a whole frame as its type wants it, and returns the first error and the part that
// it is in.
func parseAll(frame []byte) (where string, err error) {
	h := wire.ParseHeader(frame)
	payload, err := wire.Payload(frame)
	if err != nil {
		return "checksum", err
	}
	var metadata []byte
	switch h.Type {
	case wire.Settings:
		var l wire.Limits
		err = wire.ParseSettings(payload, &l)
		metadata = l.Metadata
	case wire.Method:
		var m wire.Binding
		err = wire.ParseMethod(payload, &m)
	case wire.MethodInfo:
		var m wire.Info
		err = wire.ParseMethodInfo(payload, &m)
	case wire.GoAway:
		var d wire.Drain
		err = wire.ParseGoAway(payload, &d)
	case wire.Credit:
		var w wire.Window
		err = wire.ParseCredit(payload, &w)
	case wire.Request, wire.Reply, wire.Data:
		fields, message, err := wire.SplitFields(h.Flags, payload)
		if err != nil {
			return "split", err
		}
		var f wire.Fields
		if err = wire.ParseFields(fields, &f); err != nil {
			return "fields", err
		}
		metadata = f.Metadata
		if _, _, err = wire.SplitBody(h.Flags, message); err != nil {
			return "body", err
		}
	}
	if err != nil {
		return "fields", err
	}
	if err = wire.EachPair(metadata, func(_, _ []byte) {}); err != nil {
		return "pairs", err
	}
	return "", nil
}

// An unknown field is one that a later version may send.
func TestUnknownFieldsAreSkipped(t *testing.T) {
	_, frames := readVectors(t, "frames.json")
	for i := range frames {
		v := &frames[i]
		if v.header().Type != wire.Settings && v.header().Type != wire.Method && v.header().Type != wire.GoAway {
			continue
		}
		const unknown = "\xf0\xac\x02" + "\xf1\x03abc" + "\xfe\x00" + "\xff\x00" // a number, bytes, and both empty
		u := *v
		u.Hex = append(append(append([]byte(nil), v.Hex[:wire.HeaderSize]...), unknown...), v.Hex[wire.HeaderSize:]...)
		u.Hex = append(u.Hex, unknown...)
		wire.Finish(u.Hex, 0)
		t.Run(v.Name, func(t *testing.T) { parseVector(t, &u) })
	}
}

// What a peer says of itself is bounded where it is read.
func TestWhatAServerSaysOfItselfIsBounded(t *testing.T) {
	name := func(n int) []byte { return bytes.Repeat([]byte("n"), n) }
	list := func(names, size int) (b []byte) {
		for range names {
			b = wire.AppendService(b, string(name(size)))
		}
		return b
	}
	for _, c := range []struct {
		about  string
		limits wire.Limits
		want   error
	}{
		{"the longest incarnation", wire.Limits{Incarnation: name(wire.MaxIncarnation)}, nil},
		{"a longer incarnation", wire.Limits{Incarnation: name(wire.MaxIncarnation + 1)}, wire.ErrBounds},
		{"the longest name of a key memory", wire.Limits{KeyScope: name(wire.MaxKeyScope)}, nil},
		{"a longer name of a key memory", wire.Limits{KeyScope: name(wire.MaxKeyScope + 1)}, wire.ErrBounds},
		{"the longest name of a caller", wire.Limits{Caller: name(wire.MaxCaller)}, nil},
		{"a longer name of a caller", wire.Limits{Caller: name(wire.MaxCaller + 1)}, wire.ErrBounds},
		{"the most services", wire.Limits{Services: list(wire.MaxServices, 31)}, nil},
		{"one service more", wire.Limits{Services: list(wire.MaxServices+1, 20)}, wire.ErrBounds},
		{"too long a list of services", wire.Limits{Services: list(wire.MaxServices, 32)}, wire.ErrBounds},
		{"a name that ends too early", wire.Limits{Services: []byte("\x05four")}, wire.ErrTruncated},
	} {
		var got wire.Limits
		if err := wire.ParseSettings(payloadOf(wire.AppendSettings(nil, &c.limits)), &got); err != c.want {
			t.Errorf("%s: got error %v, want %v", c.about, err, c.want)
		}
	}
}

func TestTheLastOfARepeatedFieldCounts(t *testing.T) {
	payload := wire.AppendSettings(nil, &wire.Limits{MaxOpen: 1, Agent: []byte("first")})[wire.HeaderSize:]
	payload = append(payload, wire.AppendSettings(nil, &wire.Limits{MaxOpen: 2, Agent: []byte("second")})[wire.HeaderSize:]...)
	var got wire.Limits
	compare(t, wire.ParseSettings(payload, &got), got, wire.Limits{MaxOpen: 2, Agent: []byte("second")})
}

// A parser is given what a peer sent, whole or not. It may fail, and neither panics nor allocates.
func TestTruncatedFramesDoNoHarm(t *testing.T) {
	_, frames := readVectors(t, "frames.json")
	_, broken := readVectors(t, "broken.json")
	for _, v := range append(frames, broken...) {
		for n := wire.HeaderSize; n <= len(v.Hex); n++ {
			frame := v.Hex[:n:n]
			if allocs := testing.AllocsPerRun(1, func() { _, _ = parseAll(frame) }); allocs != 0 {
				t.Errorf("%s, %d of %d bytes: %v allocations", v.Name, n, len(v.Hex), allocs)
			}
		}
	}
}

// The results alias the input, so that nothing is copied, and cannot be appended to over what
// follows.
func TestParsedBytesAreCutOff(t *testing.T) {
	frame := wire.AppendMethod(nil, 1, 2, &wire.Binding{Name: []byte("name"), Codec: []byte("codec")})
	var m wire.Binding
	if err := wire.ParseMethod(frame[wire.HeaderSize:], &m); err != nil {
		t.Fatal(err)
	}
	if _ = append(m.Name, "xxxxxxxx"...); string(m.Codec) != "codec" {
		t.Errorf("appending to the name changed the codec to %q", m.Codec)
	}
	frame[wire.HeaderSize+2] = 'N'
	if string(m.Name) != "Name" {
		t.Errorf("the name %q is a copy", m.Name)
	}
}

func TestFieldsSizeIsAnUpperBound(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 300)
	const most = 1<<64 - 1
	f := wire.Fields{
		Size: most, Metadata: long, Timeout: most, Attempt: most, Budget: most, IdempotencyKey: long, Criticality: most,
		Tenant: long, Trace: long, Key: long, Epoch: most, Explain: most, Message: long, ErrorID: long, Details: long,
		RetryAfter: most, Load: most, ServerTime: most, Parent: most, ServerWait: most, KeyBegan: most, Header: long,
	}
	for _, f := range []wire.Fields{f, {}, {Metadata: long}} {
		if got, bound := len(wire.AppendFields(nil, &f)), wire.FieldsSize(&f); got > bound {
			t.Errorf("%d bytes were appended, and %d announced", got, bound)
		}
	}
}

func TestIDsGoThroughAllGenerationsOfASlot(t *testing.T) {
	for _, slot := range []uint32{0, 1, wire.MaxSlots - 1} {
		seen := map[uint32]bool{}
		id := slot
		for range 4095 {
			id = wire.NextID(id)
			if wire.Slot(id) != slot || id>>wire.SlotBits == 0 || seen[id] {
				t.Fatalf("slot %d: got id %#x, seen before: %t", slot, id, seen[id])
			}
			seen[id] = true
		}
		if first := wire.NextID(slot); wire.NextID(id) != first {
			t.Errorf("slot %d: got id %#x after the last generation, want %#x", slot, wire.NextID(id), first)
		}
	}
}
