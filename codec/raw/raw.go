// SPDX-License-Identifier: Apache-2.0

// Package raw is the codec of messages that are bytes already. Every server has it.
package raw

import "github.com/yodel-rpc/yodel/internal/rawcodec"

// Codec is called "raw". It carries []byte, View, and pointers to either.
//
// Decoding copies into the capacity of the target. If that is too small for a large body, the
// target takes over the received buffer without a copy. Bytes that a handler returns are sent
// without a copy and must not be changed afterwards. Small messages of a stream that arrived
// together share an allocation of 2 KiB, which remains in memory while any of them is in use.
var Codec = codec{}

type codec struct{ rawcodec.Codec[View] }

// A View is a message of the codec that a handler only reads. As the argument of a unary method
// it is not copied: it is valid until the handler returns, and must not be changed. The handler may
// return it as its reply. In all other places a View behaves like a []byte.
type View []byte
