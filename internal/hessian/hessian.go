// SPDX-License-Identifier: Apache-2.0

// Package hessian reads and writes values in Hessian 2, as Dubbo's hessian-lite does. It is the
// common part of package codec/hessian2 and package protocol/dubbo.
//
// The values of one stream share three tables: the classes that were defined, the names of types,
// and the lists, maps and objects that a later value may refer to. Reader.Copy makes a value that
// needs no table of its stream, and Join makes one stream of such values.
package hessian

import (
	"errors"
	"fmt"
)

// The first bytes of values. Small values have first bytes of their own: see Reader.next.
const (
	binaryChunk    = 'A'
	binaryFinal    = 'B'
	classDef       = 'C'
	double         = 'D'
	falseValue     = 'F'
	untypedMap     = 'H'
	int32Value     = 'I'
	dateMillis     = 'J'
	dateMinutes    = 'K'
	int64Value     = 'L'
	typedMap       = 'M'
	nullValue      = 'N'
	object         = 'O'
	reference      = 'Q'
	stringChunk    = 'R'
	stringFinal    = 'S'
	trueValue      = 'T'
	variableTyped  = 'U'
	fixedTyped     = 'V'
	variableList   = 'W'
	fixedList      = 'X'
	longOfInt32    = 'Y'
	end            = 'Z'
	doubleZero     = 0x5b
	doubleOne      = 0x5c
	doubleOfInt8   = 0x5d
	doubleOfInt16  = 0x5e
	doubleOfMillis = 0x5f // the number of thousandths
	shortObject    = 0x60 // and up to 15 more: the class
	shortTyped     = 0x70 // and up to 7 more: the length
	shortList      = 0x78 // and up to 7 more: the length
)

// maxDepth is how many lists, maps and objects may be inside one another.
const maxDepth = 256

// ErrMemory is the error of a Reader whose Reserve has returned false.
var ErrMemory = errors.New("hessian: there is no memory left for the values of the message")

// Errors of messages.
var (
	errCut    = errors.New("hessian: the message is cut off")
	errDepth  = fmt.Errorf("hessian: more than %d values are inside one another", maxDepth)
	errText   = errors.New("hessian: a string is not UTF-8")
	errBeyond = errors.New("hessian: the values are larger than the limit once each has its own copy of what they share")
	errRoom   = errors.New("hessian: the message would take much more memory or work than it has bytes")
)

// A kind is the kind of a value.
type kind byte

const (
	isNull kind = iota
	isBool
	isInt
	isLong
	isDouble
	isDate
	isText
	isBinary
	isList
	isMap
	isObject
	isRef
	isEnd // of a map, or of a list without a length
)

var kindNames = [...]string{"null", "a boolean", "an int", "a long", "a double", "a date", "a string", "a binary", "a list", "a map", "an object", "a reference", "the end of a list"}

func (k kind) String() string { return kindNames[k] }
