// SPDX-License-Identifier: Apache-2.0

// Package plain has the messages as plain structs, for codecs that work by reflection.
package plain

// Args is what is multiplied.
type Args struct{ A, B int }

// Reply is the product.
type Reply struct{ C int }

// BenchmarkMessage is the message that RPC frameworks have been compared with since 2016.
type BenchmarkMessage struct {
	Field1   string
	Field9   string
	Field18  string
	Field80  bool
	Field81  bool
	Field2   int32
	Field3   int32
	Field280 int32
	Field6   int32
	Field22  int64
	Field4   string
	Field5   []uint64
	Field59  bool
	Field7   string
	Field16  int32
	Field130 int32
	Field12  bool
	Field17  bool
	Field13  bool
	Field14  bool
	Field104 int32
	Field100 int32
	Field101 int32
	Field102 string
	Field103 string
	Field29  int32
	Field30  bool
	Field60  int32
	Field271 int32
	Field272 int32
	Field150 int32
	Field23  int32
	Field24  bool
	Field25  int32
	Field78  bool
	Field67  int32
	Field68  int32
	Field128 int32
	Field129 string
	Field131 int32
}
