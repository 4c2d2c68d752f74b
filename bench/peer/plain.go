// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"fmt"
	"reflect"
)

// A PlainMessage has the fields of the benchmark's message as a plain struct, for codecs that work
// by reflection.
type PlainMessage struct {
	Field1, Field9, Field18, Field4, Field7, Field102, Field103, Field129                    string
	Field80, Field81, Field59, Field12, Field17, Field13, Field14, Field30, Field24, Field78 bool
	Field2, Field3, Field280, Field6, Field16, Field130, Field104, Field100, Field101, Field29, Field60, Field271,
	Field272, Field150, Field23, Field25, Field67, Field68, Field128, Field131 int32
	Field22 int64
	Field5  []uint64
}

const plainText = "许多往事在眼前一幕一幕，变的那麼模糊"

// NewPlain sets the fields to what they are in protobuf too.
func NewPlain() *PlainMessage {
	p := new(PlainMessage)
	for _, field := range reflect.ValueOf(p).Elem().Fields() {
		switch field.Kind() {
		case reflect.String:
			field.SetString(plainText)
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Int32, reflect.Int64:
			field.SetInt(100_000)
		default: // the one that is repeated stays empty
		}
	}
	return p
}

// AnswerPlain makes of a request its reply.
func AnswerPlain(in, out *PlainMessage) {
	*out = *in
	out.Field1, out.Field2 = "OK", 100
}

// CheckPlain reports what is wrong with a reply.
func CheckPlain(p *PlainMessage) error {
	if p.Field1 != "OK" || p.Field2 != 100 || p.Field102 != plainText {
		return fmt.Errorf("the reply has field1 %q, field2 %d and field102 %q", p.Field1, p.Field2, p.Field102)
	}
	return nil
}
