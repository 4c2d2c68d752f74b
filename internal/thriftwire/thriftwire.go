// SPDX-License-Identifier: Apache-2.0

// Package thriftwire reads and writes the binary and the compact protocol of Apache Thrift. A
// Reader works on bytes in memory, or on a connection whose bytes it captures with limits. The
// package knows nothing of Go types.
package thriftwire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A Format is one of Thrift's two encodings.
type Format uint8

// The formats.
const (
	Binary Format = iota
	Compact
)

// String returns the name of the format in errors.
func (f Format) String() string {
	if f == Compact {
		return "compact"
	}
	return "binary"
}

// A Type is the type of a field or an element. Its number is that of the binary protocol.
type Type uint8

// The types. String is also the type of binary data, and I32 that of enums.
const (
	Stop   Type = 0 // the end of a struct
	Bool   Type = 2
	I8     Type = 3
	Double Type = 4
	I16    Type = 6
	I32    Type = 8
	I64    Type = 10
	String Type = 11
	Struct Type = 12
	Map    Type = 13
	Set    Type = 14
	List   Type = 15
	UUID   Type = 16
)

var typeNames = [...]string{
	Stop: "stop", Bool: "bool", I8: "i8", Double: "double", I16: "i16", I32: "i32", I64: "i64", String: "string",
	Struct: "struct", Map: "map", Set: "set", List: "list", UUID: "uuid",
}

// String returns the name of the type in Thrift's language.
func (t Type) String() string {
	if int(t) < len(typeNames) && typeNames[t] != "" {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// compactNumbers has the numbers of the types in the compact protocol. The number of Bool means
// true. The number of false is 2.
var compactNumbers = [...]byte{
	Bool: compactTrue, I8: 3, I16: 4, I32: 5, I64: 6, Double: 7, String: 8, List: 9, Set: 10, Map: 11, Struct: 12, UUID: 13,
}

const (
	compactTrue  = 1
	compactFalse = 2
)

// compactTypes has the types of the numbers of the compact protocol.
var compactTypes = [16]Type{Stop, Bool, Bool, I8, I16, I32, I64, Double, String, List, Set, Map, Struct, UUID}

// known reports whether values can have the type.
func (t Type) known() bool { return t != Stop && int(t) < len(typeNames) && typeNames[t] != "" }

// fixed returns the size of a value, or 0 if it varies.
func (f Format) fixed(t Type) int {
	switch t { //nolint:exhaustive // the others are handled together
	case Bool, I8:
		return 1
	case Double:
		return 8
	case UUID:
		return 16
	}
	if f == Binary {
		switch t { //nolint:exhaustive // the others are handled together
		case I16:
			return 2
		case I32:
			return 4
		case I64:
			return 8
		}
	}
	return 0
}

// Least returns the smallest number of bytes that an element of the type takes.
func (f Format) Least(t Type) int {
	if n := f.fixed(t); n > 0 {
		return n
	}
	if f == Binary {
		switch t { //nolint:exhaustive // the others are handled together
		case String:
			return 4
		case List, Set:
			return 5
		case Map:
			return 6
		}
	}
	return 1
}

// MaxDepth is how deep structs and containers may be nested.
const MaxDepth = 64

// The faults of a message.
var (
	ErrTooLarge = errors.New("the message is larger than the limit")
	ErrMemory   = errors.New("there is no memory left for the message")
	ErrTooDeep  = fmt.Errorf("structs and containers are nested deeper than %d", MaxDepth)
	errNegative = errors.New("a length is negative or too large")
	errVarint   = errors.New("a number has too many bytes")
)

// The types of messages.
const (
	Call      = 1
	Reply     = 2
	Exception = 3
	OneWay    = 4
)

// A Header is the beginning of a message.
type Header struct {
	Format    Format
	NotStrict bool // the old form of the binary protocol, without a version
	Type      byte // Call, Reply, Exception or OneWay
	Seq       int32
	Name      string
}

const (
	compactID  = 0x82
	strictHigh = 0x80
	strictLow  = 0x01
)

// AppendHeader appends a header to dst.
func AppendHeader(dst []byte, h *Header) []byte {
	switch {
	case h.Format == Compact:
		dst = append(dst, compactID, h.Type<<5|1)
		dst = binary.AppendUvarint(dst, uint64(uint32(h.Seq))) //nolint:gosec // the bits
		return append(binary.AppendUvarint(dst, uint64(len(h.Name))), h.Name...)
	case h.NotStrict:
		dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(h.Name))), h.Name...) //nolint:gosec // names are short
		dst = append(dst, h.Type)
	default:
		dst = append(dst, strictHigh, strictLow, 0, h.Type)
		dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(h.Name))), h.Name...) //nolint:gosec // names are short
	}
	return binary.BigEndian.AppendUint32(dst, uint32(h.Seq)) //nolint:gosec // the bits
}

// Header reads the beginning of a message. A name has at most maxName bytes.
func (r *Reader) Header(maxName int) (h Header, err error) {
	first, err := r.Byte()
	if err != nil {
		return h, err
	}
	switch {
	case first == compactID:
		return r.compactHeader(maxName)
	case first&0x80 == 0:
		h.NotStrict = true
		rest, err := r.take(3)
		if err != nil {
			return h, err
		}
		if h.Name, err = r.name(uint64(first)<<24|uint64(rest[0])<<16|uint64(rest[1])<<8|uint64(rest[2]), maxName); err != nil {
			return h, err
		}
		if h.Type, err = r.Byte(); err != nil {
			return h, err
		}
	default:
		rest, err := r.take(7)
		if err != nil {
			return h, err
		}
		if first != strictHigh || rest[0] != strictLow {
			return h, fmt.Errorf("the message begins with %#x %#x, which is no version of the protocol", first, rest[0])
		}
		h.Type = rest[2]
		if h.Name, err = r.name(uint64(binary.BigEndian.Uint32(rest[3:])), maxName); err != nil {
			return h, err
		}
	}
	seq, err := r.take(4)
	if err != nil {
		return h, err
	}
	h.Seq = int32(binary.BigEndian.Uint32(seq)) //nolint:gosec // the bits
	return h, nil
}

func (r *Reader) compactHeader(maxName int) (h Header, err error) {
	h.Format = Compact
	b, err := r.Byte()
	if err != nil {
		return h, err
	}
	if b&0x1f != 1 {
		return h, fmt.Errorf("version %d of the compact protocol is unknown", b&0x1f)
	}
	h.Type = b >> 5
	seq, err := r.uvarint()
	if err != nil {
		return h, err
	}
	h.Seq = int32(uint32(seq)) //nolint:gosec // the bits
	n, err := r.uvarint()
	if err != nil {
		return h, err
	}
	h.Name, err = r.name(n, maxName)
	return h, err
}

func (r *Reader) name(n uint64, most int) (string, error) {
	if n > uint64(most) {
		return "", fmt.Errorf("the name of a method has %d bytes, the limit is %d", n, most)
	}
	b, err := r.take(int(n)) //nolint:gosec,dupword // at most most
	return string(b), err
}
