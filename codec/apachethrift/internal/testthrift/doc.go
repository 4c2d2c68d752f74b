// SPDX-License-Identifier: Apache-2.0

// Package testthrift is what version 0.25 of Apache's compiler generates from paints.thrift:
//
//	thrift --gen go:skip_remote,package_prefix=github.com/yodel-rpc/yodel/codec/apachethrift/internal/ -out .. paints.thrift
package testthrift
