// SPDX-License-Identifier: Apache-2.0

// Package shoppb has the messages and services of shop.proto, as protoc-gen-go and
// protoc-gen-go-grpc generate them.
//
// It was generated with protoc 3.21.12 (Debian's protobuf-compiler), protoc-gen-go v1.36.12 and
// protoc-gen-go-grpc v1.6.2:
//
//	protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative shop.proto
package shoppb
