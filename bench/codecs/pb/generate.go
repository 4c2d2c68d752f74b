// SPDX-License-Identifier: Apache-2.0

// Package pb has the messages as protoc-gen-go alone generates them: with protoc 3.21.12 (Debian's
// protobuf-compiler) and protoc-gen-go v1.36.12.
package pb

//go:generate protoc --go_out=. --go_opt=paths=source_relative pb.proto
