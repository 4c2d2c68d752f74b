// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// Limits is the payload of Settings: what the sender of the frame accepts. A field that is 0 in
// the frame has the default that spec/wire.md gives.
type Limits struct {
	MaxFrame     uint64 // bytes of payload in one frame
	MaxMessage   uint64 // bytes of one message, as sent
	MaxOpen      uint64 // requests open at once
	MaxOpenBytes uint64 // bytes of their messages
	StreamWindow uint64 // bytes that may be sent on a stream before credit comes
	MaxMethods   uint64 // method numbers
	// The largest values that MaxOpen and MaxOpenBytes will ever have. 0 means their current
	// values.
	MostOpen      uint64
	MostOpenBytes uint64
	Metadata      []byte // of the connection: pairs, see AppendPair
	Agent         []byte // the implementation, for people
	// Incarnation identifies this run of the server. It is random. It is empty if the sender has no
	// services.
	Incarnation []byte
	// Services lists the services whose methods the server has, see AppendService. An empty list
	// means that the services are unknown.
	Services []byte
	// KeyScope names the memory in which the server remembers idempotency keys. An empty KeyScope
	// means that the server remembers no keys.
	KeyScope []byte
	// KeyKeep is the shortest time for which that memory keeps a key, in microseconds.
	KeyKeep uint64
	// Caller is the name under which the sender calls, for statistics. It is empty if the sender
	// has no name.
	Caller []byte
}

// Bounds of the fields with which a peer describes itself. A longer field is a breach of the
// protocol.
const (
	MaxIncarnation   = 64   // bytes of an incarnation
	MaxServices      = 256  // names in a list of services
	MaxServicesBytes = 8192 // bytes of a list of services
	MaxKeyScope      = 255  // bytes of the name of a key memory
	MaxCaller        = 64   // bytes of the name of a caller
)

const (
	tagMaxFrame     = 1 << 1
	tagMaxMessage   = 2 << 1
	tagMaxOpen      = 3 << 1
	tagMaxOpenBytes = 4 << 1
	tagStreamWindow = 5 << 1
	tagMaxMethods   = 6 << 1
	tagConnMetadata = 7<<1 | 1
	tagAgent        = 8<<1 | 1
	tagMostOpen     = 9 << 1
	tagMostBytes    = 10 << 1
	tagIncarnation  = 11<<1 | 1
	tagServices     = 12<<1 | 1
	tagKeyScope     = 13<<1 | 1
	tagKeyKeep      = 14 << 1
	tagCaller       = 15<<1 | 1
)

// AppendSettings appends a whole Settings frame.
func AppendSettings(dst []byte, l *Limits) []byte {
	start := len(dst)
	dst = Begin(dst, &Header{Type: Settings})
	dst = appendNumber(dst, tagMaxFrame, l.MaxFrame)
	dst = appendNumber(dst, tagMaxMessage, l.MaxMessage)
	dst = appendNumber(dst, tagMaxOpen, l.MaxOpen)
	dst = appendNumber(dst, tagMaxOpenBytes, l.MaxOpenBytes)
	dst = appendNumber(dst, tagStreamWindow, l.StreamWindow)
	dst = appendNumber(dst, tagMaxMethods, l.MaxMethods)
	dst = appendBytes(dst, tagConnMetadata, l.Metadata)
	dst = appendBytes(dst, tagAgent, l.Agent)
	dst = appendNumber(dst, tagMostOpen, l.MostOpen)
	dst = appendNumber(dst, tagMostBytes, l.MostOpenBytes)
	dst = appendBytes(dst, tagIncarnation, l.Incarnation)
	dst = appendBytes(dst, tagServices, l.Services)
	dst = appendBytes(dst, tagKeyScope, l.KeyScope)
	dst = appendNumber(dst, tagKeyKeep, l.KeyKeep)
	dst = appendBytes(dst, tagCaller, l.Caller)
	return Finish(dst, start)
}

// ParseSettings reads the payload of a Settings frame. It returns ErrBounds for a field that is
// longer than the specification allows.
func ParseSettings(b []byte, l *Limits) error {
	*l = Limits{}
	err := eachField(b, func(tag byte, n uint64, value []byte) {
		switch tag {
		case tagMaxFrame:
			l.MaxFrame = n
		case tagMaxMessage:
			l.MaxMessage = n
		case tagMaxOpen:
			l.MaxOpen = n
		case tagMaxOpenBytes:
			l.MaxOpenBytes = n
		case tagStreamWindow:
			l.StreamWindow = n
		case tagMaxMethods:
			l.MaxMethods = n
		case tagConnMetadata:
			l.Metadata = value
		case tagAgent:
			l.Agent = value
		case tagMostOpen:
			l.MostOpen = n
		case tagMostBytes:
			l.MostOpenBytes = n
		case tagIncarnation:
			l.Incarnation = value
		case tagServices:
			l.Services = value
		case tagKeyScope:
			l.KeyScope = value
		case tagKeyKeep:
			l.KeyKeep = n
		case tagCaller:
			l.Caller = value
		}
	})
	if err != nil {
		return err
	}
	if len(l.Incarnation) > MaxIncarnation || len(l.Services) > MaxServicesBytes || len(l.KeyScope) > MaxKeyScope || len(l.Caller) > MaxCaller {
		return ErrBounds
	}
	names := 0
	if err = EachService(l.Services, func([]byte) { names++ }); err == nil && names > MaxServices {
		err = ErrBounds
	}
	return err
}

// AppendService appends one name of a list of services: a varint length, and the name.
func AppendService(dst []byte, name string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(name))), name...)
}

// EachService calls f for each name of a list of services, in order. The argument of f aliases b.
func EachService(b []byte, f func(name []byte)) error {
	for len(b) > 0 {
		name, rest, err := cutBytes(b)
		if err != nil {
			return err
		}
		f(name)
		b = rest
	}
	return nil
}

// The kinds of methods.
const (
	Unary  = iota // one request, one reply
	Feed          // one request, a stream of replies
	Upload        // a stream of requests, one reply
	Duplex        // streams both ways
)

// MaxName bounds the name, codec, compressor and schema of a Binding, in bytes.
const MaxName = 255

// Binding is the payload of Method: it gives a method number its meaning for the following frames.
type Binding struct {
	Name       []byte
	Codec      []byte
	Compressor []byte // of messages that are marked compressed, both ways
	Kind       uint64
	Positional uint64 // 1: the body is Values
	Idempotent uint64 // 1: the opener declares the method idempotent
	Schema     []byte // hash of the schema, for comparison
}

// Info is the payload of MethodInfo: the information of the receiver of Method about the method.
type Info struct {
	Known      uint64 // 1: the method exists
	Kind       uint64
	Idempotent uint64 // 1: the server declares it idempotent
	Nests      uint64 // 1: it makes calls of its own, which share the caller's budget
}

// TooLong reports whether a part of b is longer than MaxName.
func (b *Binding) TooLong() bool {
	return max(len(b.Name), len(b.Codec), len(b.Compressor), len(b.Schema)) > MaxName
}

const (
	tagName       = 1<<1 | 1
	tagCodec      = 2<<1 | 1
	tagCompressor = 3<<1 | 1
	tagKind       = 4 << 1
	tagPositional = 5 << 1
	tagIdempotent = 6 << 1
	tagSchema     = 7<<1 | 1
	tagKnown      = 8 << 1
	tagNests      = 9 << 1
)

// AppendMethod appends a whole Method frame. MethodInfo repeats the id. So if the number got a new
// meaning while an answer was on its way, the answer does not count for the new meaning.
func AppendMethod(dst []byte, number uint16, id uint32, m *Binding) []byte {
	start := len(dst)
	dst = Begin(dst, &Header{Type: Method, Arg: number, ID: id})
	dst = appendBytes(dst, tagName, m.Name)
	dst = appendBytes(dst, tagCodec, m.Codec)
	dst = appendBytes(dst, tagCompressor, m.Compressor)
	dst = appendNumber(dst, tagKind, m.Kind)
	dst = appendNumber(dst, tagPositional, m.Positional)
	dst = appendNumber(dst, tagIdempotent, m.Idempotent)
	dst = appendBytes(dst, tagSchema, m.Schema)
	return Finish(dst, start)
}

// ParseMethod reads the payload of a Method frame.
func ParseMethod(b []byte, m *Binding) error {
	*m = Binding{}
	return eachField(b, func(tag byte, n uint64, value []byte) {
		switch tag {
		case tagName:
			m.Name = value
		case tagCodec:
			m.Codec = value
		case tagCompressor:
			m.Compressor = value
		case tagKind:
			m.Kind = n
		case tagPositional:
			m.Positional = n
		case tagIdempotent:
			m.Idempotent = n
		case tagSchema:
			m.Schema = value
		}
	})
}

// AppendMethodInfo appends a whole MethodInfo frame.
func AppendMethodInfo(dst []byte, number uint16, id uint32, m *Info) []byte {
	start := len(dst)
	dst = Begin(dst, &Header{Type: MethodInfo, Arg: number, ID: id})
	dst = appendNumber(dst, tagKnown, m.Known)
	dst = appendNumber(dst, tagKind, m.Kind)
	dst = appendNumber(dst, tagIdempotent, m.Idempotent)
	dst = appendNumber(dst, tagNests, m.Nests)
	return Finish(dst, start)
}

// ParseMethodInfo reads the payload of a MethodInfo frame.
func ParseMethodInfo(b []byte, m *Info) error {
	*m = Info{}
	return eachField(b, func(tag byte, n uint64, _ []byte) {
		switch tag {
		case tagKnown:
			m.Known = n
		case tagKind:
			m.Kind = n
		case tagIdempotent:
			m.Idempotent = n
		case tagNests:
			m.Nests = n
		}
	})
}

// Drain is the payload of GoAway.
type Drain struct {
	Count   uint64 // how many of the receiver's requests, counted from the first, are processed
	Message []byte
	ErrorID []byte
	Again   uint64 // 1: only the connection ends; the receiver may connect again at once
}

const (
	tagCount        = 1 << 1
	tagDrainMessage = 2<<1 | 1
	tagDrainID      = 3<<1 | 1
	tagDrainAgain   = 4 << 1
)

// AppendGoAway appends a whole GoAway frame.
func AppendGoAway(dst []byte, code uint16, d *Drain) []byte {
	start := len(dst)
	dst = Begin(dst, &Header{Type: GoAway, Arg: code})
	dst = appendNumber(dst, tagCount, d.Count)
	dst = appendBytes(dst, tagDrainMessage, d.Message)
	dst = appendBytes(dst, tagDrainID, d.ErrorID)
	dst = appendNumber(dst, tagDrainAgain, d.Again)
	return Finish(dst, start)
}

// ParseGoAway reads the payload of a GoAway frame.
func ParseGoAway(b []byte, d *Drain) error {
	*d = Drain{}
	return eachField(b, func(tag byte, n uint64, value []byte) {
		switch tag {
		case tagCount:
			d.Count = n
		case tagDrainMessage:
			d.Message = value
		case tagDrainID:
			d.ErrorID = value
		case tagDrainAgain:
			d.Again = n
		}
	})
}

// Window is the payload of Credit: the new limits for the receiver of the frame. The limits of the
// connection bound the requests that may be open at once, and can shrink. The limit of a stream is
// a sum since the opening of the stream, and only grows.
type Window struct {
	MaxOpen      uint64
	MaxOpenBytes uint64
	StreamBytes  uint64
}

const tagStreamBytes = 9 << 1

// AppendCredit appends a whole Credit frame.
func AppendCredit(dst []byte, flags Flags, id uint32, w *Window) []byte {
	start := len(dst)
	dst = Begin(dst, &Header{Type: Credit, Flags: flags, ID: id})
	dst = appendNumber(dst, tagMaxOpen, w.MaxOpen)
	dst = appendNumber(dst, tagMaxOpenBytes, w.MaxOpenBytes)
	dst = appendNumber(dst, tagStreamBytes, w.StreamBytes)
	return Finish(dst, start)
}

// ParseCredit reads the payload of a Credit frame.
func ParseCredit(b []byte, w *Window) error {
	*w = Window{}
	return eachField(b, func(tag byte, n uint64, _ []byte) {
		switch tag {
		case tagMaxOpen:
			w.MaxOpen = n
		case tagMaxOpenBytes:
			w.MaxOpenBytes = n
		case tagStreamBytes:
			w.StreamBytes = n
		}
	})
}
