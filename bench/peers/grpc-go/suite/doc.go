// SPDX-License-Identifier: Apache-2.0

// Package suite is the code generated from ../../suite.proto and ../../wires.proto, with protoc
// 3.21.12 (Debian's protobuf-compiler), protoc-gen-go v1.36.12 and protoc-gen-go-grpc v1.6.2, by
// go generate.
package suite

//go:generate protoc -I../.. -I../../../message --go_out=. --go_opt=paths=source_relative,Msuite.proto=github.com/yodel-rpc/yodel/bench/peers/grpc-go/suite,Mwires.proto=github.com/yodel-rpc/yodel/bench/peers/grpc-go/suite --go-grpc_out=. --go-grpc_opt=paths=source_relative,Msuite.proto=github.com/yodel-rpc/yodel/bench/peers/grpc-go/suite,Mwires.proto=github.com/yodel-rpc/yodel/bench/peers/grpc-go/suite suite.proto wires.proto
