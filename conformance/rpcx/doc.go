// SPDX-License-Identifier: Apache-2.0

// Package rpcx tests package protocol/rpcx with rpcx 1.9.4 itself: its clients call yodel servers,
// and yodel clients call its servers. It is a module of its own, outside of the workspace, so that
// the dependencies of rpcx do not reach the other modules. Run it with
//
//	cd conformance/rpcx && YODEL_REAL=1 GOWORK=off go test ./...
//
// Without YODEL_REAL, the tests that start etcd or processes with servers are skipped. The first
// run builds etcd, which takes minutes.
//
// With the race detector, TestRPCXClientDeadlineAndOneWay may fail: in rpcx's client, the goroutine
// of a canceled call reads a number while another goroutine writes it. The large payloads also take
// minutes.
package rpcx
