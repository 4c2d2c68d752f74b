// SPDX-License-Identifier: Apache-2.0

// Package testpb has generated messages with rules of protovalidate, for tests. They were generated
// from signup.proto with protocompile v0.14.1, which took buf/validate/validate.proto from the Go
// module, and protoc-gen-go v1.36.12.
package testpb
