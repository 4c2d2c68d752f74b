// SPDX-License-Identifier: Apache-2.0

// Package conformancev1 has the messages of the conformance tests of Connect, version 1.0.6. Protoc
// has generated them from its files in proto/connectrpc/conformance/v1, with protoc-gen-go 1.36.12.
package conformancev1
