// SPDX-License-Identifier: Apache-2.0

// Package thrift tests protocol/thrift and codec/thrift with Apache Thrift's implementation for Go
// and code that its compiler generated: its clients call a yodel server, a yodel client calls its
// server, and both encode the same messages. With YODEL_REAL=1, it also runs Apache's own cross
// test for Python and Java, in both directions. It is a module of its own, so that the root needs
// nothing but the standard library. Run it with
//
//	YODEL_REAL=1 GOWORK=off go test ./...
//
// Apache's programs for the cross test of Go cannot be run, because they are in a module that is
// not published.
//
// To generate the code again, use version 0.25 of the compiler:
//
//	thrift -r --gen go:skip_remote,package_prefix=github.com/yodel-rpc/yodel/conformance/thrift/gen/ -out gen thrifttest.thrift
package thrift
