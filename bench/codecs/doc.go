// SPDX-License-Identifier: Apache-2.0

// Package codecs compares codecs as calls of yodel, net/rpc and rpcx use them: its tests are
// benchmarks, and the folders below are the messages.
package codecs
