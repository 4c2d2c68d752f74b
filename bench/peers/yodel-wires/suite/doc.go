// SPDX-License-Identifier: Apache-2.0

// Package suite is the code generated from the messages of ../../suite.proto, with protoc 3.21.12
// (Debian's protobuf-compiler), protoc-gen-go v1.36.12 and protoc-gen-go-vtproto v0.6.0, by go
// generate.
package suite

//go:generate protoc -I../.. -I../../../message --go_out=. --go_opt=paths=source_relative,Msuite.proto=github.com/yodel-rpc/yodel/bench/peers/yodel-wires/suite --go-vtproto_out=. --go-vtproto_opt=paths=source_relative,features=marshal+unmarshal+size,Msuite.proto=github.com/yodel-rpc/yodel/bench/peers/yodel-wires/suite suite.proto
