// SPDX-License-Identifier: Apache-2.0

// Package testpb has messages for tests, as protoc-gen-go alone generates them: the message that
// benchmarks of RPC frameworks have used since 2016, and a nested one.
//
// It was generated with protoc 3.21.12 (Debian's protobuf-compiler) and protoc-gen-go v1.36.12:
//
//	protoc --go_out=. --go_opt=paths=source_relative testpb.proto
package testpb
