// SPDX-License-Identifier: Apache-2.0

// Package testpb has the messages that the tests of package transcode send, and their annotations.
package testpb
