// SPDX-License-Identifier: Apache-2.0

// Package vtpb has the small messages with the methods that vtprotobuf adds; the large one is in
// bench/message. Made with protoc 3.21.12 (Debian's protobuf-compiler), protoc-gen-go v1.36.12 and
// protoc-gen-go-vtproto v0.6.0.
package vtpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-vtproto_out=. --go-vtproto_opt=paths=source_relative,features=marshal+unmarshal+size vtpb.proto
