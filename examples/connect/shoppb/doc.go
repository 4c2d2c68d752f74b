// SPDX-License-Identifier: Apache-2.0

// Package shoppb has the messages of shop.proto, as protoc-gen-go generates them, and package
// shoppbconnect below it the services, as protoc-gen-connect-go generates them.
//
// They were generated with protoc 3.21.12 (Debian's protobuf-compiler), protoc-gen-go v1.36.12 and
// protoc-gen-connect-go v1.21.0:
//
//	protoc --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative shop.proto
package shoppb
