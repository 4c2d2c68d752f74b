// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"reflect"
)

// A Message has the fields of the benchmark's message, as a plain struct: what gob is made for.
type Message struct {
	Field1, Field9, Field18, Field4, Field7, Field102, Field103, Field129                    string
	Field80, Field81, Field59, Field12, Field17, Field13, Field14, Field30, Field24, Field78 bool
	Field2, Field3, Field280, Field6, Field16, Field130, Field104, Field100, Field101, Field29, Field60, Field271,
	Field272, Field150, Field23, Field25, Field67, Field68, Field128, Field131 int32
	Field22 int64
	Field5  []uint64
}

const text = "许多往事在眼前一幕一幕，变的那麼模糊"

// newMessage sets the fields to what they are in protobuf too.
func newMessage() *Message {
	m := new(Message)
	for _, field := range reflect.ValueOf(m).Elem().Fields() {
		switch field.Kind() {
		case reflect.String:
			field.SetString(text)
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Int32, reflect.Int64:
			field.SetInt(100_000)
		default: // the one that is repeated stays empty
		}
	}
	return m
}

func (m *Message) check() error {
	if m.Field1 != "OK" || m.Field2 != 100 || m.Field102 != text {
		return fmt.Errorf("the reply has field1 %q, field2 %d and field102 %q", m.Field1, m.Field2, m.Field102)
	}
	return nil
}
