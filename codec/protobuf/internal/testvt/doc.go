// SPDX-License-Identifier: Apache-2.0

// Package testvt has the messages of testpb with the methods that vtprotobuf adds, and tests the
// codec with them. It is a module of its own, so that users of the codec do not require vtprotobuf.
//
// It was generated with protoc 3.21.12 (Debian's protobuf-compiler), protoc-gen-go v1.36.12 and
// protoc-gen-go-vtproto v0.6.0:
//
//	protoc --go_out=. --go_opt=paths=source_relative --go-vtproto_out=. \
//		--go-vtproto_opt=paths=source_relative,features=marshal+unmarshal+size testvt.proto
package testvt
