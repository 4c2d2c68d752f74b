// SPDX-License-Identifier: Apache-2.0

// Package grpc tests yodel with grpc-go: with its interoperability cases and its own test service.
package grpc
